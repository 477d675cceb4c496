"""POST /v1/chat/completions: the body, its checks, and its meaning as a GenerationRequest."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from daemon.api.openai.format_fields import GuidedFields, ResponseFormat, read_constraint
from daemon.api.openai.sampling_fields import include_usage, read_sampling, read_stops
from daemon.api.openai.tool_fields import ToolChoiceField, ToolField, read_tools
from daemon.serving.request import ChatPrompt, Endpoint, GenerationRequest
from engine.errors import InvalidParameter
from engine.messages import Several

ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
MAX_MESSAGES = 4096


class ContentPart(msgspec.Struct, frozen=True):
    type: str
    text: str | None = None
    refusal: str | None = None


class FunctionCall(msgspec.Struct, frozen=True):
    name: str
    arguments: str | None = None


class ToolCall(msgspec.Struct, frozen=True):
    function: FunctionCall
    id: str | None = None
    type: str | None = None


class Message(msgspec.Struct, frozen=True):
    """One turn. Unknown keys in a message are passed over: clients echo back whatever servers once sent them."""

    role: Annotated[str, Meta(extra_json_schema={"enum": sorted(ROLES)})]  # checked by hand, for a better message
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None


class ChatBody(GuidedFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    messages: Annotated[list[Message], Meta(min_length=1, max_length=MAX_MESSAGES)]
    max_tokens: Several | None = None
    max_completion_tokens: Several | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    response_format: ResponseFormat | None = None
    modalities: list[str] | None = None
    tools: list[ToolField] | None = None
    tool_choice: str | ToolChoiceField | None = None
    parallel_tool_calls: bool | None = None
    functions: list[Any] | None = None
    function_call: Any = None
    audio: Any = None
    web_search_options: Any = None
    moderation: Any = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


decoder = msgspec.json.Decoder(ChatBody)


def read_chat(body: ChatBody) -> GenerationRequest:
    """Raises: InvalidParameter naming the field that is wrong or not supported."""
    _refuse_unsupported(body)
    max_tokens = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    prompt, template_kwargs = read_conversation(
        body.messages,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        chat_template_kwargs=body.chat_template_kwargs,
    )
    return GenerationRequest(
        endpoint=Endpoint.CHAT,
        model=body.model,
        prompts=(prompt,),
        sampling=read_sampling(body, max_tokens=max_tokens, top_logprobs=_read_logprobs(body)),
        n=body.n or 1,
        stops=read_stops(body.stop),
        stream=bool(body.stream),
        include_usage=include_usage(body),
        template_kwargs=template_kwargs,
        tools=read_tools(body.tools, body.tool_choice, body.parallel_tool_calls),
        constraint=read_constraint(body.response_format, body),
        reasoning_effort=read_effort(body.reasoning_effort, "reasoning_effort"),
    )


def read_conversation(
    messages: list[Message],
    *,
    add_generation_prompt: bool | None,
    continue_final_message: bool | None,
    chat_template_kwargs: dict[str, Any] | None,
) -> tuple[ChatPrompt, dict[str, Any]]:
    """The prompt and the template's variables. Raises: InvalidParameter"""
    if continue_final_message and add_generation_prompt:
        raise InvalidParameter(
            "continue_final_message and add_generation_prompt exclude each other.",
            "Send one of them.",
            param="continue_final_message",
        )
    prompt = ChatPrompt(
        tuple(_read_message(message, at) for at, message in enumerate(messages)),
        add_generation_prompt=add_generation_prompt is not False,
        continue_final=bool(continue_final_message),
    )
    return prompt, _read_template_kwargs(chat_template_kwargs)


def read_effort(effort: str | None, param: str) -> str | None:
    """Raises: InvalidParameter"""
    if effort is not None and effort not in EFFORTS:
        raise InvalidParameter(f"{param} is {effort[:32]!r}; use one of {', '.join(EFFORTS)}.", param=param)
    return effort


def _read_logprobs(body: ChatBody) -> int | None:
    if body.top_logprobs and not body.logprobs:  # 0 asks for nothing
        raise InvalidParameter(
            "top_logprobs was given without logprobs.", "Set logprobs to true.", param="top_logprobs"
        )
    return (body.top_logprobs or 0) if body.logprobs else None


def _read_template_kwargs(kwargs: dict[str, Any] | None) -> dict[str, Any]:
    read = kwargs or {}
    reserved = sorted(read.keys() & {"messages", "tools", "add_generation_prompt"})
    if reserved:
        raise InvalidParameter(f"chat_template_kwargs may not hold {reserved[0]!r}.", param="chat_template_kwargs")
    return read


def _refuse_unsupported(body: ChatBody) -> None:
    refused: list[tuple[str, bool, str]] = [
        ("functions", bool(body.functions), "It was replaced by tools."),
        ("function_call", body.function_call not in (None, "none", "auto"), "It was replaced by tool_choice."),
        ("audio", body.audio is not None, "Only text is generated."),
        ("modalities", any(kind != "text" for kind in body.modalities or ()), "Only text is generated."),
        ("moderation", body.moderation is not None, "Nothing is moderated here."),
        ("web_search_options", body.web_search_options is not None, "Bayard never searches the web."),
    ]
    for name, wrong, why in refused:
        if wrong:
            raise InvalidParameter(f"The value of {name!r} is not supported. {why}", "Remove it.", param=name)


def _read_message(message: Message, at: int) -> dict[str, Any]:
    """The form that chat templates read. `developer` is the newer name of `system`."""
    where = f"messages[{at}]"
    if message.role not in ROLES:
        raise InvalidParameter(
            f"{where}.role is {message.role[:32]!r}; it must be one of {', '.join(sorted(ROLES))}.",
            param=f"{where}.role",
        )
    text = _read_content(message.content, where)
    if text is None and message.role != "assistant":
        raise InvalidParameter(f"{where}.content is missing.", param=f"{where}.content")
    read: dict[str, Any] = {
        "role": "system" if message.role == "developer" else message.role,
        "content": text or "",
    }
    if message.name is not None:
        read["name"] = message.name
    if message.reasoning_content is not None and message.role == "assistant":
        read["reasoning_content"] = message.reasoning_content
    if message.tool_call_id is not None:
        read["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        read["tool_calls"] = [_read_tool_call(call) for call in message.tool_calls]
    return read


def _read_tool_call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.function.name, "arguments": call.function.arguments or ""}
    return {"id": call.id or "", "type": call.type or "function", "function": function}


def _read_content(content: str | list[ContentPart] | None, where: str) -> str | None:
    if content is None or isinstance(content, str):
        return content
    texts: list[str] = []
    for at, part in enumerate(content):
        if part.type not in ("text", "input_text", "output_text", "refusal"):
            raise InvalidParameter(
                f"{where}.content[{at}] is of type {part.type[:32]!r}; this model reads text only.",
                "Remove the part.",
                param=f"{where}.content",
            )
        texts.append(part.text or part.refusal or "")
    return "".join(texts)
