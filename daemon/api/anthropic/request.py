"""POST /v1/messages: the body, its checks, and its meaning as a GenerationRequest."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from daemon.api.anthropic.blocks import Block, Message, read_messages, read_system
from daemon.api.anthropic.tools import ToolChoiceField, ToolField, read_tools
from daemon.api.schema_guard import schema_grammar
from daemon.serving.request import ChatPrompt, Constraint, Endpoint, GenerationRequest, Sampling
from engine.errors import BayardError, InvalidParameter
from engine.messages import Count, Several

MAX_MESSAGES = 4096
MAX_STOPS = 64
MAX_STOP_CHARS = 1024
_EFFORTS = {"low": "low", "medium": "medium", "high": "high", "xhigh": "xhigh", "max": "xhigh"}


class Thinking(msgspec.Struct, frozen=True):
    """budget_tokens is a hint of how hard to think; the bound is max_tokens."""

    type: str
    budget_tokens: Several | None = None
    display: str | None = None


class OutputFormat(msgspec.Struct, frozen=True):
    type: str
    schema: dict[str, Any] | None = None


class OutputConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    effort: str | None = None
    format: OutputFormat | None = None


class CountBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What says how long a prompt is."""

    model: Annotated[str, Meta(min_length=1, max_length=512)]
    messages: Annotated[list[Message], Meta(min_length=1, max_length=MAX_MESSAGES)]
    system: str | list[Block] | None = None
    tools: list[ToolField] | None = None
    tool_choice: ToolChoiceField | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None  # the older place of output_config.format
    mcp_servers: list[Any] | None = None
    # Bookkeeping: no effect that a caller of this server would miss.
    cache_control: Any = None
    context_management: Any = None
    speed: Any = None
    user_profile_id: Any = None
    workspace_id: Any = None
    betas: Any = None


class MessagesBody(CountBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    max_tokens: Several
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Count | None = None
    container: Any = None
    diagnostics: Any = None
    inference_geo: Any = None
    metadata: Any = None
    service_tier: Any = None


decoder = msgspec.json.Decoder(MessagesBody)
count_decoder = msgspec.json.Decoder(CountBody)


def read_count(body: CountBody) -> GenerationRequest:
    """The request as far as its prompt goes. Raises: InvalidParameter"""
    return _read(body, Sampling())


def read_request(body: MessagesBody) -> GenerationRequest:
    """Raises: InvalidParameter naming the field that is wrong or not supported"""
    sampling = Sampling(
        max_tokens=body.max_tokens,
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=body.top_k or 0,
    )
    if body.container is not None:
        raise InvalidParameter("container is not supported: nothing is run here.", "Remove it.", param="container")
    return _read(body, sampling, stops=_read_stops(body.stop_sequences), stream=bool(body.stream))


def shows_thinking(body: MessagesBody) -> bool:
    return body.thinking is not None and body.thinking.type != "disabled" and body.thinking.display != "omitted"


def in_these_words(error: BayardError) -> BayardError:
    """An error about a field under the name it has in this contract."""
    if isinstance(error, InvalidParameter) and error.param == "reasoning_effort":
        message = error.message.replace("reasoning_effort", "the effort of thinking")
        return InvalidParameter(message, "Leave `thinking` and `output_config.effort` out.", param="thinking")
    if isinstance(error, InvalidParameter) and error.param == "continue_final_message":
        return InvalidParameter(
            "The only message is the assistant's, which is written on; there must be one before it.",
            "Begin with a user's message.",
            param="messages",
        )
    return error


def _read(
    body: CountBody, sampling: Sampling, stops: tuple[str, ...] = (), *, stream: bool = False
) -> GenerationRequest:
    if body.mcp_servers:
        raise InvalidParameter("mcp_servers is not supported: no server is called.", "Remove it.", param="mcp_servers")
    turns = read_messages(body.messages)
    last = turns[-1]
    continued = last["role"] == "assistant" and "tool_calls" not in last
    return GenerationRequest(
        endpoint=Endpoint.MESSAGE,
        model=body.model,
        prompts=(ChatPrompt((*read_system(body.system), *turns), continue_final=continued),),
        sampling=sampling,
        stops=stops,
        stream=stream,
        tools=read_tools(body.tools, body.tool_choice),
        constraint=_read_format(body),
        reasoning_effort=_read_effort(body),
        clamp_max_tokens=True,
    )


def _read_effort(body: CountBody) -> str | None:
    """Without thinking the model is told not to, where its template can say so."""
    thinking = body.thinking
    effort = body.output_config.effort if body.output_config is not None else None
    if effort is not None and effort not in _EFFORTS:
        raise InvalidParameter(
            f"output_config.effort is {effort[:32]!r}; use one of {', '.join(_EFFORTS)}.", param="output_config.effort"
        )
    if thinking is None or thinking.type == "disabled":
        return None if effort is None and thinking is None else "none"
    if thinking.type not in ("enabled", "adaptive"):
        raise InvalidParameter(
            f"thinking.type is {thinking.type[:32]!r}; use enabled, adaptive or disabled.", param="thinking.type"
        )
    if effort is not None:
        return _EFFORTS[effort]
    if thinking.type == "adaptive":
        return None
    budget = thinking.budget_tokens
    if budget is None:
        raise InvalidParameter("thinking.budget_tokens is missing.", param="thinking.budget_tokens")
    return "low" if budget < 4096 else "medium" if budget < 16384 else "high"


def _read_format(body: CountBody) -> Constraint | None:
    param = "output_config.format"
    form = body.output_config.format if body.output_config is not None else None
    if form is None:
        form, param = body.output_format, "output_format"
    if form is None:
        return None
    if form.type != "json_schema" or form.schema is None:
        raise InvalidParameter(
            f"{param} is of type {form.type[:32]!r}; it must be json_schema, with a schema.", param=param
        )
    return Constraint(schema_grammar(form.schema, param), param)


def _read_stops(stops: list[str] | None) -> tuple[str, ...]:
    param = "stop_sequences"
    if stops and len(stops) > MAX_STOPS:
        raise InvalidParameter(
            f"stop_sequences has {len(stops)} strings; at most {MAX_STOPS} are allowed.", param=param
        )
    for text in stops or ():
        if not text:
            raise InvalidParameter("stop_sequences holds an empty string.", "Leave it out.", param=param)
        if len(text) > MAX_STOP_CHARS:
            raise InvalidParameter(
                f"A stop sequence has {len(text):,} characters; at most {MAX_STOP_CHARS:,} are allowed.", param=param
            )
    return tuple(stops or ())
