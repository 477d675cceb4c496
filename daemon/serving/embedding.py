"""EmbeddingPath: texts on their way to vectors, past the same door, limits and ending as generations."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from daemon.serving.events import TokenUsage
from daemon.serving.live import LiveRequest, LiveRequests, RequestState
from daemon.serving.request import TextPrompt, TokenPrompt
from daemon.serving.settlement import Ending, Settlement
from daemon.serving.waiting import replica_when_ready
from daemon.tenants.admission import Ticket
from daemon.tenants.principal import Principal
from daemon.tenants.service import TenantService
from engine.errors import (
    BayardError,
    Cancelled,
    ContextTooLong,
    DeadlineExceeded,
    InvalidParameter,
    WorkerError,
    WorkerLost,
    error_of,
)
from engine.messages import Embed, FinishReason, TokenDelta

if TYPE_CHECKING:
    from daemon.router import Replica, Router
    from engine.text import TextPipeline

INLINE_BYTES = 2048
AT_ONCE = 64  # texts of one request in the engine at a time, so that others' come between


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """param names the field that held the texts, for errors."""

    model: str
    inputs: tuple[TextPrompt | TokenPrompt, ...]
    dimensions: int | None = None
    param: str = "input"
    truncate: bool = False  # cut what is too long instead of refusing it
    deadline_s: float | None = None
    stream: bool = False


@dataclass(frozen=True, slots=True)
class Embedded:
    """vectors: little-endian float32 of length one, in the order of the inputs."""

    id: str
    created: int
    model: str
    vectors: list[bytes]
    usage: TokenUsage


@dataclass(slots=True)
class _Spent:
    device_s: float = 0.0
    prompt_tokens: int = 0


class EmbeddingPath:
    """Owner: the Appliance. Used on the event loop; long texts are tokenised in threads."""

    def __init__(
        self,
        tenants: TenantService,
        router: Router,
        live: LiveRequests,
        settlement: Settlement,
        *,
        model_wait_s: float = 0.0,
    ) -> None:
        self._model_wait_s = model_wait_s
        self._tenants = tenants
        self._router = router
        self._live = live
        self._settlement = settlement

    async def embed(self, request: EmbeddingRequest, principal: Principal, *, origin: str) -> Embedded:
        """Blocks: until all vectors are there. Cancelling aborts in the engine.

        Raises: every RequestError, AdmissionError and WorkerError
        """
        task = asyncio.current_task()
        assert task is not None
        live = self._live.add("embd-" + secrets.token_hex(12), request, principal, origin, _canceller(task))
        try:
            async with asyncio.timeout(request.deadline_s):
                return await self._admitted(request, principal, live)
        except TimeoutError:
            raise DeadlineExceeded(
                f"The request's {request.deadline_s:.1f} s have passed.", "Allow more time, or send fewer texts."
            ) from None
        except asyncio.CancelledError:
            if live.cancelled:
                task.uncancel()
                raise Cancelled("An operator ended the request before it was complete.", "Send it again.") from None
            raise

    async def _replica(self, request: EmbeddingRequest) -> Replica:
        """Blocks: while one is on its way. Raises: NotReady, ModelNotFound"""
        return await replica_when_ready(
            lambda: self._router.replica_for(request.model),
            self._model_wait_s,
            wanted=lambda: not self._tenants.admission.draining,
        )

    async def _admitted(self, request: EmbeddingRequest, principal: Principal, live: LiveRequest) -> Embedded:
        ticket: Ticket | None = None
        try:
            self._tenants.admission.check_model(principal, request.model)
            _check(request, await self._replica(request))
            ticket = await self._tenants.admission.enter(principal, request.model, 1)
            live.state = RequestState.PREPARING
            replica = await self._replica(request)
            _check(request, replica)
            most = _context(replica, principal)
            token_ids = await _tokenised(request, replica, most)
            live.worker = replica.worker
            live.prompt_tokens = sum(map(len, token_ids))
            ticket.reserve(live.prompt_tokens)
        except BaseException as error:
            self._settlement.refused(live, ticket, principal, error)
            raise
        live.state = RequestState.WAITING
        spent = _Spent()
        outcome, failure = "abort", None
        try:
            vectors = await _vectors(live, replica, principal, token_ids, spent, request.deadline_s)
            outcome = "stop"
        except BayardError as error:
            outcome, failure = error.code, error
            raise
        finally:
            usage = TokenUsage(spent.prompt_tokens, 0, device_s=spent.device_s)
            self._settlement.ended(live, ticket, principal, Ending(outcome, usage, failure))
        return Embedded(live.id, int(time.time()), live.model, vectors, usage)


async def _vectors(
    live: LiveRequest,
    replica: Replica,
    principal: Principal,
    token_ids: list[list[int]],
    spent: _Spent,
    deadline_s: float | None,
) -> list[bytes]:
    """One vector a text; the first that fails ends all, and its error is raised."""
    vectors: list[bytes] = [b""] * len(token_ids)
    left = iter(enumerate(token_ids))

    async def work() -> None:
        for at, ids in left:
            remaining_s = None if deadline_s is None else max(0.0, deadline_s - live.age_s)
            delta = await replica.client.embed(
                Embed(
                    f"{live.id}.{at}",
                    ids,
                    priority=principal.priority,
                    tenant=principal.tenant_id,
                    weight=principal.limits.weight,
                    deadline_s=remaining_s,
                    adapter=replica.adapter,
                )
            )
            spent.prompt_tokens += len(ids)
            if delta.usage is not None:
                spent.device_s += delta.usage.device_s
            vectors[at] = _vector_of(delta)
            live.first_token_mono = live.first_token_mono or time.monotonic()

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(AT_ONCE, len(token_ids))):
                group.create_task(work(), name="embed")
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return vectors


def _vector_of(delta: TokenDelta) -> bytes:
    """Raises: BayardError where there is none"""
    if delta.finish is FinishReason.STOP and delta.embedding is not None:
        return delta.embedding
    if delta.finish is FinishReason.ERROR and delta.error is not None:
        raise error_of(delta.error.code, delta.error.message, delta.error.hint, unknown=WorkerError)
    raise WorkerLost("The worker was stopped before the request was complete.", "Send it again.")


def _check(request: EmbeddingRequest, replica: Replica) -> None:
    """Raises: InvalidParameter"""
    if not replica.embeds:
        raise InvalidParameter(
            f"The model {request.model} generates text; it makes no embeddings.",
            "Ask for an embedding model: `GET /v1/models` lists those there are.",
            param="model",
        )
    native = replica.embedding_dimensions
    if request.dimensions is not None and request.dimensions != native:
        raise InvalidParameter(
            f"dimensions is {request.dimensions:,}; the embeddings of {request.model} have {native:,}.",
            "Leave it out.",
            param="dimensions",
        )


def _context(replica: Replica, principal: Principal) -> int:
    most = principal.limits.max_context_tokens
    return replica.max_context_tokens if most is None else min(most, replica.max_context_tokens)


async def _tokenised(request: EmbeddingRequest, replica: Replica, most: int) -> list[list[int]]:
    """Raises: InvalidParameter, ContextTooLong"""
    size = sum(len(one.text) for one in request.inputs if isinstance(one, TextPrompt))
    if size <= INLINE_BYTES:
        return _tokens(request, replica, most)
    return await asyncio.to_thread(_tokens, request, replica, most)


def _tokens(request: EmbeddingRequest, replica: Replica, most: int) -> list[list[int]]:
    """Raises: InvalidParameter, ContextTooLong"""
    found: list[list[int]] = []
    for at, one in enumerate(request.inputs):
        where = request.param if len(request.inputs) == 1 else f"{request.param}[{at}]"
        if isinstance(one, TextPrompt):
            ids = replica.text.encode_for_embedding(one.text)
            if request.truncate and len(ids) > most:
                ids = _cut(ids, replica.text, most)
        else:
            ids = list(one.token_ids[:most] if request.truncate else one.token_ids)
        for token_id in ids:
            if not 0 <= token_id < replica.text.vocab_size:
                raise InvalidParameter(
                    f"{where} holds token id {token_id}; the model has {replica.text.vocab_size:,}.",
                    param=request.param,
                )
        if not ids:
            raise InvalidParameter(f"{where} has no tokens.", param=request.param)
        if len(ids) > most:
            raise ContextTooLong(
                f"{where} has {len(ids):,} tokens; the model {request.model} here allows {most:,}.",
                "Shorten it, or cut it into pieces.",
                param=request.param,
            )
        found.append(ids)
    return found


def _cut(ids: list[int], text: TextPipeline, most: int) -> list[int]:
    """The first tokens of a text, with the mark that the tokenizer puts behind one."""
    plain, marked = text.encode("a"), text.encode("a", add_bos=True)
    before = next((at for at in range(len(marked)) if marked[at : at + len(plain)] == plain), 0)
    behind = len(marked) - before - len(plain)
    return [*ids[: most - behind], *ids[len(ids) - behind :]]


def _canceller(task: asyncio.Task[object]) -> Callable[[], Awaitable[None]]:
    async def cancel() -> None:
        task.cancel()

    return cancel
