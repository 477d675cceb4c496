"""Input items of /v1/responses, and the messages they stand for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from engine.errors import InvalidParameter

_TEXT_PARTS = frozenset({"input_text", "output_text", "text", "refusal", "reasoning_text", "summary_text"})
_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
MAX_ITEMS = 8192


class Part(msgspec.Struct, frozen=True, omit_defaults=True):
    type: str
    text: str | None = None
    refusal: str | None = None


class Item(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message where type is left out. Unknown keys are passed over: clients send back what servers once sent them."""

    type: str | None = None
    role: str | None = None
    content: str | list[Part] | None = None
    id: str | None = None
    status: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[Part] | None = None
    summary: list[Part] | None = None


def text_item(text: str) -> Item:
    """What a plain string as input stands for."""
    return Item(type="message", role="user", content=[Part("input_text", text)])


def messages_of(items: Sequence[Item]) -> list[dict[str, Any]]:
    """The form that chat templates read. Raises: InvalidParameter"""
    messages: list[dict[str, Any]] = []
    thought = ""  # of the assistant's message that comes next
    for at, item in enumerate(items):
        where = f"input[{at}]"
        match item.type:
            case None | "message":
                message = _message(item, where)
            case "function_call":
                call = _call(item, where)
                if messages and messages[-1]["role"] == "assistant" and not thought:
                    messages[-1].setdefault("tool_calls", []).append(call)
                    continue
                message = {"role": "assistant", "content": "", "tool_calls": [call]}
            case "function_call_output":
                if item.call_id is None or item.output is None:
                    raise _missing(where, "call_id and output")
                message = {"role": "tool", "tool_call_id": item.call_id, "content": _text(item.output, where)}
            case "reasoning":
                thought += _text(item.content or item.summary, where)
                continue
            case _:
                raise InvalidParameter(
                    f"{where} is of type {item.type[:32]!r}; messages, function calls, their outputs and reasoning "
                    "are served.",
                    "Leave it out.",
                    param=where,
                )
        if thought and message["role"] == "assistant":
            message["reasoning_content"] = thought
        thought = ""
        messages.append(message)
    return messages


def _message(item: Item, where: str) -> dict[str, Any]:
    role = _ROLES.get(item.role or "")
    if role is None:
        raise InvalidParameter(
            f"{where}.role is {(item.role or '')[:32]!r}; it must be one of {', '.join(sorted(_ROLES))}.",
            param=f"{where}.role",
        )
    if item.content is None:
        raise _missing(where, "content")
    return {"role": role, "content": _text(item.content, where)}


def _call(item: Item, where: str) -> dict[str, Any]:
    if item.call_id is None or item.name is None:
        raise _missing(where, "call_id and name")
    function = {"name": item.name, "arguments": item.arguments or ""}
    return {"id": item.call_id, "type": "function", "function": function}


def _text(content: str | list[Part] | None, where: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    for part in content:
        if part.type not in _TEXT_PARTS:
            raise InvalidParameter(
                f"{where} holds a part of type {part.type[:32]!r}; this model reads text only.",
                "Remove the part.",
                param=where,
            )
    return "".join(part.text or part.refusal or "" for part in content)


def _missing(where: str, what: str) -> InvalidParameter:
    return InvalidParameter(f"{where} lacks {what}.", param=where)
