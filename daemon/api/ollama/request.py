"""The bodies of /api/chat, /api/generate and /api/embed, their checks, and what they mean."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from daemon.api.ollama.options import Options, read_options
from daemon.api.openai.tool_fields import ToolField, read_tools
from daemon.api.schema_guard import schema_grammar
from daemon.serving.embedding import EmbeddingRequest
from daemon.serving.request import ChatPrompt, Constraint, Endpoint, GenerationRequest, Prompt, TextPrompt
from engine.errors import BayardError, InvalidParameter
from engine.messages import AnyInt, Grammar, GrammarKind, Several

MAX_MESSAGES = 4096
MAX_INPUTS = 2048
ROLES = ("system", "user", "assistant", "tool")
EFFORTS = ("low", "medium", "high")
Name = Annotated[str, Meta(min_length=1, max_length=512)]


class CalledFunction(msgspec.Struct, frozen=True):
    name: str
    arguments: dict[str, Any] | None = None


class ToolCall(msgspec.Struct, frozen=True):
    function: CalledFunction
    id: str | None = None


class Message(msgspec.Struct, frozen=True):
    """Unknown keys are passed over: clients send back whatever servers once sent them."""

    role: str
    content: str | None = None
    thinking: str | None = None
    images: list[Any] | None = None
    tool_calls: list[ToolCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class CommonBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    model: Name
    stream: bool | None = None  # absent: true
    format: str | dict[str, Any] | None = None
    options: Options | None = None
    think: bool | str | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    keep_alive: Any = None  # the plan in force says what stays loaded
    truncate: Any = None
    shift: Any = None


class ChatBody(CommonBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    messages: Annotated[list[Message], Meta(max_length=MAX_MESSAGES)] | None = None
    tools: list[ToolField] | None = None


class GenerateBody(CommonBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    prompt: str | None = None
    system: str | None = None
    raw: bool | None = None
    suffix: str | None = None
    template: str | None = None
    images: list[Any] | None = None
    context: list[AnyInt] | None = None


class EmbedBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    model: Name
    input: str | list[str] | None = None
    truncate: bool | None = None  # absent: true
    dimensions: Several | None = None
    options: Options | None = None
    keep_alive: Any = None


class EmbeddingsBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of the older /api/embeddings."""

    model: Name
    prompt: str
    options: Options | None = None
    keep_alive: Any = None


class ShowBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    model: str | None = None
    name: str | None = None  # its older name
    verbose: Any = None
    system: Any = None
    template: Any = None
    options: Any = None


def streams(body: CommonBody) -> bool:
    return body.stream is not False


def read_chat(body: ChatBody, model: str) -> GenerationRequest:
    """model: the name as it is served. Raises: InvalidParameter naming the field"""
    turns = tuple(_read_message(message, f"messages[{at}]") for at, message in enumerate(body.messages or ()))
    last = turns[-1]
    continued = last["role"] == "assistant" and "tool_calls" not in last
    return _read(body, model, ChatPrompt(turns, continue_final=continued), body.tools)


def read_generate(body: GenerateBody, model: str) -> GenerationRequest:
    """Raises: InvalidParameter naming the field"""
    for name, given, why in (
        ("suffix", body.suffix, "No model here fills in the middle."),
        ("template", body.template, "The model's own template is used."),
        ("images", body.images, "This model reads text only."),
        ("context", body.context, "Send the conversation to /api/chat."),
    ):
        if given:
            raise InvalidParameter(f"{name} is not supported. {why}", "Leave it out.", param=name)
    prompt = body.prompt or ""
    if not body.raw:
        system = [{"role": "system", "content": body.system}] if body.system else []
        return _read(body, model, ChatPrompt((*system, {"role": "user", "content": prompt})), None)
    if body.system:
        raise InvalidParameter("system has no place in a raw prompt.", "Leave raw out.", param="system")
    return _read(body, model, TextPrompt(prompt), None)


def read_embed(body: EmbedBody, model: str) -> EmbeddingRequest:
    """Raises: InvalidParameter naming the field"""
    texts = [body.input] if isinstance(body.input, str) else body.input or []
    if len(texts) > MAX_INPUTS:
        raise InvalidParameter(f"input has {len(texts):,} texts; at most {MAX_INPUTS:,} are served.", param="input")
    if not all(texts):
        raise InvalidParameter("input holds an empty text.", "Leave it out.", param="input")
    truncate = body.truncate is not False
    return EmbeddingRequest(model, tuple(map(TextPrompt, texts)), body.dimensions, truncate=truncate)


def in_these_words(error: BayardError) -> BayardError:
    """An error about a field under the name it has in this contract."""
    if isinstance(error, InvalidParameter) and error.param == "reasoning_effort":
        message = error.message.replace("reasoning_effort is 'medium'", "think is asked for")  # what true stands for
        return InvalidParameter(message.replace("reasoning_effort", "think"), error.hint, param="think")
    if isinstance(error, InvalidParameter) and error.param == "continue_final_message":
        return InvalidParameter(
            "The only message is the assistant's, which is written on; there must be one before it.",
            "Begin with a user's message.",
            param="messages",
        )
    return error


def _read(body: CommonBody, model: str, prompt: Prompt, tools: list[ToolField] | None) -> GenerationRequest:
    sampling, stops = read_options(body.options, _read_logprobs(body))
    return GenerationRequest(
        endpoint=Endpoint.COMPLETION if isinstance(prompt, TextPrompt) else Endpoint.CHAT,
        model=model,
        prompts=(prompt,),
        sampling=sampling,
        stops=stops,
        stream=streams(body),
        tools=read_tools(tools, None, None),
        constraint=_read_format(body.format),
        reasoning_effort=_read_think(body.think),
        clamp_max_tokens=True,
    )


def _read_logprobs(body: CommonBody) -> int | None:
    if body.top_logprobs and not body.logprobs:
        raise InvalidParameter("top_logprobs was given without logprobs.", "Set logprobs.", param="top_logprobs")
    return (body.top_logprobs or 0) if body.logprobs else None


def _read_format(form: str | dict[str, Any] | None) -> Constraint | None:
    if form is None or form == "":
        return None
    if form == "json":
        return Constraint(Grammar(GrammarKind.JSON_OBJECT), "format")
    if isinstance(form, str):
        raise InvalidParameter(f"format is {form[:32]!r}; it must be json or a JSON schema.", param="format")
    return Constraint(schema_grammar(form, "format"), "format")


def _read_think(think: bool | str | None) -> str | None:
    if think is None:
        return None
    if isinstance(think, bool):
        return "medium" if think else "none"
    if think not in EFFORTS:
        raise InvalidParameter(f"think is {think[:32]!r}; use true, false, {', '.join(EFFORTS)}.", param="think")
    return think


def _read_message(message: Message, where: str) -> dict[str, Any]:
    if message.role not in ROLES:
        raise InvalidParameter(
            f"{where}.role is {message.role[:32]!r}; it must be one of {', '.join(ROLES)}.", param=f"{where}.role"
        )
    if message.images:
        raise InvalidParameter(f"{where} has images; this model reads text only.", "Remove them.", param=where)
    read: dict[str, Any] = {"role": message.role, "content": message.content or ""}
    if message.thinking and message.role == "assistant":
        read["reasoning_content"] = message.thinking
    if message.tool_name:
        read["name"] = message.tool_name
    if message.role == "tool":
        read["tool_call_id"] = message.tool_call_id or message.tool_name or ""
    if message.tool_calls:
        read["tool_calls"] = [_read_call(call) for call in message.tool_calls]
    return read


def _read_call(call: ToolCall) -> dict[str, Any]:
    arguments = msgspec.json.encode(call.function.arguments or {}).decode()
    return {"id": call.id or call.function.name, "type": "function",
            "function": {"name": call.function.name, "arguments": arguments}}  # fmt: skip
