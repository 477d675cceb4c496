"""Content blocks of the Messages contract as the messages that chat templates read."""

from __future__ import annotations

from typing import Any

import msgspec

from engine.errors import InvalidParameter

_TEXT_ONLY = "This model reads text only."


class Block(msgspec.Struct, frozen=True):
    """Any block; unknown keys are passed over: clients send back whatever servers once sent them."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[Any] | None = None
    is_error: bool | None = None


class Message(msgspec.Struct, frozen=True):
    role: str
    content: str | list[Block]


def read_system(system: str | list[Block] | None) -> list[dict[str, Any]]:
    """No message, or one. Raises: InvalidParameter"""
    if not system:
        return []
    text = system if isinstance(system, str) else "\n\n".join(_text(block, "system") for block in system)
    return [{"role": "system", "content": text}]


def read_messages(messages: list[Message]) -> list[dict[str, Any]]:
    """Turns of one role after another become one, as the contract has it. Raises: InvalidParameter"""
    read: list[dict[str, Any]] = []
    for at, message in enumerate(messages):
        where = f"messages[{at}]"
        blocks = [Block("text", message.content)] if isinstance(message.content, str) else message.content
        match message.role:
            case "user":
                _read_user(read, blocks, where)
            case "assistant":
                _read_assistant(read, blocks, where)
            case role:
                raise InvalidParameter(
                    f"{where}.role is {role[:32]!r}; it must be user or assistant.",
                    "What is for the system goes into `system`." if role == "system" else "",
                    param=f"{where}.role",
                )
    return read


def _read_user(read: list[dict[str, Any]], blocks: list[Block], where: str) -> None:
    texts: list[str] = []
    results = 0
    for at, block in enumerate(blocks):
        inside = f"{where}.content[{at}]"
        if block.type == "tool_result":
            if not block.tool_use_id:
                raise InvalidParameter(f"{inside}.tool_use_id is missing.", param=inside)
            read.append({"role": "tool", "tool_call_id": block.tool_use_id, "content": _result(block, inside)})
            results += 1
        else:
            texts.append(_text(block, inside))
    if texts or not results:
        _append(read, "user", "".join(texts))


def _read_assistant(read: list[dict[str, Any]], blocks: list[Block], where: str) -> None:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for at, block in enumerate(blocks):
        inside = f"{where}.content[{at}]"
        match block.type:
            case "tool_use":
                calls.append(_call(block, inside))
            case "thinking":
                thoughts.append(block.thinking or "")
            case "redacted_thinking":
                continue
            case _:
                texts.append(_text(block, inside))
    text = "".join(texts)
    if not calls and not thoughts:
        _append(read, "assistant", text)
        return
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    read.append(message)


def _append(read: list[dict[str, Any]], role: str, text: str) -> None:
    if read and read[-1]["role"] == role and read[-1].keys() == {"role", "content"}:
        read[-1]["content"] += "\n\n" + text
    else:
        read.append({"role": role, "content": text})


def _text(block: Block, where: str) -> str:
    if block.type != "text":
        raise InvalidParameter(f"{where} is of type {block.type[:32]!r}. {_TEXT_ONLY}", "Remove it.", param=where)
    if block.text is None:
        raise InvalidParameter(f"{where}.text is missing.", param=where)
    return block.text


def _result(block: Block, where: str) -> str:
    if block.content is None:
        text = ""
    elif isinstance(block.content, str):
        text = block.content
    else:
        try:
            parts = msgspec.convert(block.content, list[Block])
        except msgspec.ValidationError as error:
            raise InvalidParameter(f"{where}.content: {error}.", param=where) from None
        text = "".join(_text(part, f"{where}.content[{at}]") for at, part in enumerate(parts))
    return f"Error: {text}" if block.is_error else text


def _call(block: Block, where: str) -> dict[str, Any]:
    if not block.name or block.id is None:
        raise InvalidParameter(f"{where} must have an id and a name.", param=where)
    arguments = msgspec.json.encode(block.input or {}).decode()
    return {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": arguments}}
