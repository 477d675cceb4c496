"""bayard.v1.Inference: the same path as HTTP, with statuses for errors and messages for events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import grpc
import structlog
from grpc.aio import AbortError, ServicerContext

from daemon.api.grpc.chat_fields import read_chat_request
from daemon.api.grpc.gen import bayard_pb2 as pb
from daemon.api.grpc.gen import bayard_pb2_grpc as stubs
from daemon.api.grpc.statuses import abort_with
from daemon.api.services import Services
from daemon.serving.events import ChoiceDone, Failed, Finished, LogprobEntry, TextDelta
from daemon.serving.generation import Generation
from daemon.tenants.principal import Principal
from engine.errors import BayardError

if TYPE_CHECKING:
    Context = ServicerContext[Any, Any]

WRITE_TIMEOUT_S = 30.0
log = structlog.get_logger(__name__)


class InferenceService(stubs.InferenceServicer):  # type: ignore[misc]  # generated code has no types
    def __init__(self, services: Services) -> None:
        self._services = services

    async def Chat(self, request: pb.ChatRequest, context: Context) -> None:
        await self._at_border(context, lambda: self._chat(request, context))

    async def ListModels(self, request: pb.ListModelsRequest, context: Context) -> pb.ListModelsResponse:
        answer = pb.ListModelsResponse()

        async def fill() -> None:
            principal = self._principal(context)
            router, now = self._services.router, time.time() - time.monotonic()
            for name in router.models():
                if principal.limits.allows_model(name):
                    replica = router.replica_for(name)
                    answer.models.add(
                        id=name, created=int(now + replica.since_mono), max_context_tokens=replica.max_context_tokens
                    )

        await self._at_border(context, fill)
        return answer

    async def _at_border(self, context: Context, work: Callable[[], Awaitable[None]]) -> None:
        """Where a call ends, once, whatever happens in it."""
        try:
            await work()
        except AbortError:
            raise
        except BayardError as error:
            await abort_with(context, error)
        except Exception:
            log.exception("grpc_call_broke")
            await context.abort(grpc.StatusCode.INTERNAL, "Bayard failed on this request; the daemon's log tells more.")

    async def _chat(self, request: pb.ChatRequest, context: Context) -> None:
        principal = self._principal(context)
        generation = await self._services.serving.open(read_chat_request(request), principal, origin="grpc")
        async with generation:
            await self._write_events(generation, context)

    async def _write_events(self, generation: Generation, context: Context) -> None:
        async for event in generation:
            delta = pb.ChatDelta(id=generation.id, created=generation.created, model=generation.model)
            match event:
                case TextDelta(index=index, text=text, logprobs=logprobs):
                    delta.index, delta.text = index, text
                    delta.logprobs.extend(_logprob(entry) for entry in logprobs or ())
                case ChoiceDone(index=index, reason=reason):
                    delta.index, delta.finish_reason = index, reason
                case Finished(usage=usage):
                    delta.finished.prompt_tokens = usage.prompt_tokens
                    delta.finished.completion_tokens = usage.completion_tokens
                    delta.finished.cached_tokens = usage.cached_tokens
                case Failed(error=error):
                    raise error
            try:
                async with asyncio.timeout(WRITE_TIMEOUT_S):
                    await context.write(delta)
            except TimeoutError:
                await context.abort(
                    grpc.StatusCode.DEADLINE_EXCEEDED, f"The client read nothing for {WRITE_TIMEOUT_S:.0f} s."
                )

    def _principal(self, context: Context) -> Principal:
        """Raises: Unauthenticated"""
        return self._services.tenants.authenticate(_secret(context))


def _secret(context: Context) -> str | None:
    """The key from the metadata `authorization: Bearer KEY`, or `x-api-key`."""
    found: dict[str, str] = {}
    for key, value in context.invocation_metadata() or ():
        found[key] = value if isinstance(value, str) else value.decode("latin-1")
    bearer = found.get("authorization", "")
    if bearer[:7].lower() == "bearer ":
        return bearer[7:].strip()
    return found.get("x-api-key")


def _logprob(entry: LogprobEntry) -> pb.TokenLogprob:
    made = pb.TokenLogprob(token=entry.token_bytes, logprob=entry.logprob)
    for other in entry.top:
        made.top.add(token=other.token_bytes, logprob=other.logprob)
    return made
