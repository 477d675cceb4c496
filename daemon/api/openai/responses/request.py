"""POST /v1/responses: the body, its checks, and its meaning as a GenerationRequest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from daemon.api.openai.chat_request import read_effort
from daemon.api.openai.format_fields import json_object, named_schema
from daemon.api.openai.responses.items import MAX_ITEMS, Item, messages_of, text_item
from daemon.api.openai.tool_fields import read_mode
from daemon.api.tool_checks import read_tool, tool_use
from daemon.serving.request import ChatPrompt, Constraint, Endpoint, GenerationRequest, Sampling
from daemon.serving.tools import ToolMode, ToolUse
from engine.errors import InvalidParameter
from engine.messages import Several

LOGPROBS = "message.output_text.logprobs"
SUMMARIES = ("auto", "concise", "detailed")
INCLUDABLE = frozenset({LOGPROBS, "reasoning.encrypted_content"})  # reasoning comes in clear: nothing is lost


class FormatField(msgspec.Struct, frozen=True):
    type: str
    name: str | None = None
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


class TextField(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: FormatField | None = None
    verbosity: Any = None


class ReasoningField(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """summary: where the thinking is told; it is told whole."""

    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None  # its older name


class FlatTool(msgspec.Struct, frozen=True):
    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FlatName(msgspec.Struct, frozen=True):
    type: str
    name: str | None = None


class FlatChoice(msgspec.Struct, frozen=True):
    type: str
    name: str | None = None
    mode: str | None = None
    tools: list[FlatName] | None = None


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    include_obfuscation: bool | None = None


class ResponsesBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    model: Annotated[str, Meta(min_length=1, max_length=512)]
    input: str | Annotated[list[Item], Meta(max_length=MAX_ITEMS)] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_output_tokens: Several | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    text: TextField | None = None
    tools: list[FlatTool] | None = None
    tool_choice: str | FlatChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningField | None = None
    include: list[str] | None = None
    store: bool | None = None
    metadata: dict[str, Any] | None = None
    truncation: str | None = None
    background: bool | None = None
    background_options: Any = None
    conversation: Any = None
    context_management: Any = None
    prompt: Any = None
    image: Any = None
    moderation: Any = None
    access_programs: Any = None
    # Bookkeeping: no effect that a caller of this server would miss.
    user: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None
    prompt_cache_options: Any = None
    service_tier: Any = None
    max_tool_calls: Any = None  # of built-in tools, which there are none of


decoder = msgspec.json.Decoder(ResponsesBody)


def new_items(body: ResponsesBody) -> list[Item]:
    """The input that comes with this request. Raises: InvalidParameter"""
    if isinstance(body.input, str):
        return [text_item(body.input)]
    if not body.input:
        raise InvalidParameter("input is missing.", "Send a text or a list of items.", param="input")
    return body.input


def read_response(body: ResponsesBody, items: Sequence[Item]) -> GenerationRequest:
    """items: the whole conversation, stored turns and new input.

    Raises: InvalidParameter naming the field that is wrong or not supported
    """
    _refuse_unsupported(body)
    messages = messages_of(items)
    if body.instructions:
        messages.insert(0, {"role": "system", "content": body.instructions})
    return GenerationRequest(
        endpoint=Endpoint.RESPONSE,
        model=body.model,
        prompts=(ChatPrompt(tuple(messages)),),
        sampling=Sampling(
            max_tokens=body.max_output_tokens,
            temperature=1.0 if body.temperature is None else body.temperature,
            top_p=1.0 if body.top_p is None else body.top_p,
            top_logprobs=_read_logprobs(body),
        ),
        stream=bool(body.stream),
        tools=_read_tools(body),
        constraint=_read_format(body.text),
        reasoning_effort=read_effort(None if body.reasoning is None else body.reasoning.effort, "reasoning.effort"),
    )


def summary_wanted(body: ResponsesBody) -> str | None:
    """What the client called the summary it asked for; None for none."""
    return None if body.reasoning is None else body.reasoning.summary or body.reasoning.generate_summary


def _read_logprobs(body: ResponsesBody) -> int | None:
    if LOGPROBS in (body.include or ()) or body.top_logprobs:
        return body.top_logprobs or 0
    return None


def _read_tools(body: ResponsesBody) -> ToolUse | None:
    read = []
    for at, tool in enumerate(body.tools or ()):
        where = f"tools[{at}]"
        if tool.type != "function" or tool.name is None:
            raise InvalidParameter(
                f"{where} is of type {tool.type[:32]!r}; only functions with a name are served.",
                "Leave it out.",
                param=where,
            )
        read.append(read_tool(tool.name, tool.description, tool.parameters, strict=bool(tool.strict), where=where))
    mode, only, named = _read_choice(body.tool_choice)
    return tool_use(read, mode, only=only, parallel=body.parallel_tool_calls is not False and not named)


def _read_choice(choice: str | FlatChoice | None) -> tuple[ToolMode, tuple[str, ...], bool]:
    if choice is None:
        return ToolMode.AUTO, (), False
    if isinstance(choice, str):
        return read_mode(choice), (), False
    if choice.type == "function" and choice.name is not None:
        return ToolMode.REQUIRED, (choice.name,), True
    if choice.type == "allowed_tools" and choice.tools and all(tool.name is not None for tool in choice.tools):
        return read_mode(choice.mode or "auto"), tuple(tool.name for tool in choice.tools if tool.name), False
    raise InvalidParameter(
        f"tool_choice is of type {choice.type[:32]!r}; use none, auto, required, a function or allowed_tools.",
        param="tool_choice",
    )


def _read_format(text: TextField | None) -> Constraint | None:
    form = None if text is None else text.format
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return json_object("text.format")
    if form.type == "json_schema":
        return named_schema(form.name or "schema", form.schema, "text.format")
    raise InvalidParameter(
        f"text.format is of type {form.type[:32]!r}; use text, json_object or json_schema.", param="text.format"
    )


def _refuse_unsupported(body: ResponsesBody) -> None:
    unknown = sorted(set(body.include or ()) - INCLUDABLE)
    refused: list[tuple[str, bool, str]] = [
        ("background", bool(body.background), "An answer is made while its client waits."),
        ("conversation", body.conversation is not None, "Use previous_response_id."),
        ("background_options", body.background_options is not None, "An answer is made while its client waits."),
        ("context_management", bool(body.context_management), "Nothing is left out of a conversation silently."),
        ("image", body.image is not None, "Only text is generated."),
        ("moderation", body.moderation is not None, "Nothing is moderated here."),
        ("access_programs", bool(body.access_programs), "There are none here."),
        ("prompt", body.prompt is not None, "No prompts are kept here; send the text itself."),
        ("reasoning.summary", summary_wanted(body) not in (None, *SUMMARIES), f"Use one of {', '.join(SUMMARIES)}."),
        ("truncation", body.truncation not in (None, "disabled"), "Nothing is left out of a conversation silently."),
        ("include", bool(unknown), f"{', '.join(unknown)[:64]} is not there to be included."),
    ]
    for name, wrong, why in refused:
        if wrong:
            raise InvalidParameter(f"The value of {name!r} is not supported. {why}", "Remove it.", param=name)
