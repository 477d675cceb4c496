"""Events of a generation as messages of bayard.v1, written no faster than the client reads."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

from daemon.api.grpc.gen import bayard_pb2 as pb
from daemon.serving.events import (
    ChoiceDone,
    Event,
    Failed,
    Finished,
    LogprobEntry,
    ReasoningDelta,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
)
from daemon.serving.generation import Generation

if TYPE_CHECKING:
    from grpc.aio import ServicerContext

    Context = ServicerContext[Any, Any]

WRITE_TIMEOUT_S = 30.0
Delta = TypeVar("Delta", pb.ChatDelta, pb.GenerateDelta)


async def write_events(generation: Generation, context: Context, kind: type[Delta]) -> None:
    """Raises: BayardError where the generation failed"""
    async for event in generation:
        delta = kind(id=generation.id, created=generation.created, model=generation.model)
        _fill(delta, event)
        await write(context, delta)


async def write(context: Context, message: Any) -> None:
    """Blocks: while the client's window is full, and no longer than WRITE_TIMEOUT_S; then the call ends."""
    try:
        async with asyncio.timeout(WRITE_TIMEOUT_S):
            await context.write(message)
    except TimeoutError:
        await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, f"The client read nothing for {WRITE_TIMEOUT_S:.0f} s.")


def usage_message(usage: TokenUsage) -> pb.Usage:
    return pb.Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=usage.cached_tokens,
    )


def _fill(delta: Any, event: Event) -> None:
    match event:
        case TextDelta(index=index, text=text, logprobs=logprobs):
            delta.index, delta.text = index, text
            delta.logprobs.extend(_logprob(entry) for entry in logprobs or ())
        case ReasoningDelta(index=index, text=text):
            delta.index, delta.reasoning = index, text
        case ToolCallDelta(index=index, call=call, arguments=arguments, call_id=call_id, name=name):
            delta.index = index
            delta.tool_call.CopyFrom(
                pb.ToolCallDelta(index=call, id=call_id or "", name=name or "", arguments=arguments)
            )
        case ChoiceDone(index=index, reason=reason):
            delta.index, delta.finish_reason = index, reason
        case Finished(usage=usage):
            delta.finished.CopyFrom(usage_message(usage))
        case Failed(error=error):
            raise error


def _logprob(entry: LogprobEntry) -> pb.TokenLogprob:
    made = pb.TokenLogprob(token=entry.token_bytes, logprob=entry.logprob)
    for other in entry.top:
        made.top.add(token=other.token_bytes, logprob=other.logprob)
    return made
