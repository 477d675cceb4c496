"""Generation: one admitted request on its way through an engine, ended exactly once by `_end`."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

from daemon.serving.choice import ChoiceDecoder
from daemon.serving.events import ChoiceEvent, Event, Failed, Finished, TextDelta, TokenUsage
from daemon.serving.live import LiveRequest, RequestState
from daemon.serving.merge import closing_stream, merge
from daemon.serving.retry import Retry, begun_once
from daemon.serving.settlement import Ending
from engine.errors import BayardError, Cancelled, RequestError, WorkerError, WorkerLost, error_of
from engine.messages import FinishReason, SamplingParams, Submit, TokenDelta
from engine.text import OutputParser

if TYPE_CHECKING:
    from daemon.router import Replica


@dataclass(frozen=True, slots=True)
class ChoicePlan:
    """What one choice submits. sampling None: nothing is generated, only the prompt echoed."""

    prompt: int  # number of its prompt
    token_ids: list[int]
    sampling: SamplingParams | None
    echo: str = ""
    parser: OutputParser | None = None
    group: str = ""  # choices of one group have the same prompt


@dataclass(frozen=True, slots=True)
class Terms:
    """What holds for all choices of one request. deadline_mono: by when it must have ended."""

    stops: tuple[str, ...] = ()
    continuing: bool = False
    one_call: bool = False
    tenant: str = ""
    priority: int = 0
    weight: float = 1.0
    adapter: str = ""
    deadline_mono: float | None = None
    constraint_param: str | None = None  # the field that asked for a grammar


class Generation:
    """Use as an async context manager; leaving it early aborts in the engine. Owner: the protocol's handler."""

    def __init__(
        self,
        live: LiveRequest,
        replica: Replica,
        plans: list[ChoicePlan],
        terms: Terms,
        on_end: Callable[[Generation, Ending], None],
        retry: Retry,
    ) -> None:
        self.live = live
        self.created = int(time.time())
        self.model = live.model
        self._replica = replica
        self._plans = plans
        self._terms = terms
        self._on_end = on_end
        self._retry = retry
        self._ended = False
        self._events: AsyncGenerator[Event, None] | None = None
        self._cached_tokens = [0] * len(plans)
        self._device_s = 0.0
        self._decoders = [
            ChoiceDecoder(
                index,
                replica.text,
                terms.stops,
                logprobs=plan.sampling is not None and plan.sampling.top_logprobs is not None,
                continuing=terms.continuing,
                parser=plan.parser,
                one_call=terms.one_call,
            )
            for index, plan in enumerate(plans)
        ]
        self.prompt_tokens = sum({plan.prompt: len(plan.token_ids) for plan in plans}.values())

    @property
    def id(self) -> str:
        return self.live.id

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._events is not None:
            await self._events.aclose()
        self._end("abort")

    def __aiter__(self) -> AsyncGenerator[Event, None]:
        """Text as it becomes certain; the last event is the one Finished or Failed."""
        assert self._events is None, "a generation is read once"
        self._events = self._run()
        return self._events

    async def cancel(self) -> None:
        """End it on an operator's word: the engine aborts, and the client is told so."""
        for index, decoder in enumerate(self._decoders):
            if not decoder.done:
                await self._replica.client.abort(self._engine_id(index))

    async def _run(self) -> AsyncGenerator[Event, None]:
        reason = "stop"
        try:
            for index, plan in enumerate(self._plans):
                if plan.echo:
                    yield TextDelta(index, plan.echo)
                if plan.sampling is None:
                    yield self._decoders[index].end_empty()
            again = begun_once(self._deltas, self._retry, self._go_to, self._terms.deadline_mono)
            async with aclosing(again) as deltas:
                async for index, delta in deltas:
                    decoder = self._decoders[index]
                    if delta.finish is not None:
                        self._note_usage(index, delta)
                    if decoder.done:
                        continue  # after a stop string only the engine's own end is waited for
                    for event in self._feed(decoder, delta):
                        yield event
                    if decoder.done:
                        if delta.finish is None:
                            await self._replica.client.abort(self._engine_id(index))
                    elif delta.finish is not None:
                        reason = self._finish_reason(delta)
                        for event in decoder.finish(reason):
                            yield event
        except BayardError as error:
            self._end(error.code, error)
            yield Failed(error)
            return
        usage = self._usage()
        self._end(reason)
        yield Finished(usage)

    def _finish_reason(self, delta: TokenDelta) -> str:
        """Raises: BayardError where it did not end well"""
        try:
            return finish_reason(delta, asked=self.live.cancelled)
        except RequestError as error:
            if error.param is None and self.live.output_tokens == 0:  # the worker could not compile the grammar
                error.param = self._terms.constraint_param
            raise

    def _feed(self, decoder: ChoiceDecoder, delta: TokenDelta) -> list[ChoiceEvent]:
        if not delta.token_ids:
            return []
        now = time.monotonic()
        if self.live.first_token_mono is None:
            self.live.first_token_mono = now
            self.live.state = RequestState.DECODE
        self.live.last_token_mono = now
        self.live.output_tokens += len(delta.token_ids)
        return decoder.feed(delta)

    async def _deltas(self) -> AsyncGenerator[tuple[int, TokenDelta], None]:
        indices = [index for index, plan in enumerate(self._plans) if plan.sampling is not None]
        streams = [self._replica.client.submit(self._submit(index)) for index in indices]
        if len(streams) == 1:
            async with closing_stream(streams[0]) as stream:
                async for delta in stream:
                    yield indices[0], delta
        elif streams:
            async with aclosing(merge(streams)) as merged:
                async for at, delta in merged:
                    yield indices[at], delta

    def _go_to(self, replica: Replica) -> None:
        self._replica = replica
        self.live.worker = replica.worker

    def _submit(self, index: int) -> Submit:
        plan = self._plans[index]
        assert plan.sampling is not None
        terms = self._terms
        left_s = None if terms.deadline_mono is None else max(0.0, terms.deadline_mono - time.monotonic())
        return Submit(
            self._engine_id(index),
            plan.token_ids,
            plan.sampling,
            terms.priority,
            cache_salt=f"{terms.tenant}/{terms.adapter}" if terms.adapter else terms.tenant,
            tenant=terms.tenant,
            weight=terms.weight,
            deadline_s=left_s,
            prompt_group=plan.group,
            adapter=terms.adapter,
        )

    def _engine_id(self, index: int) -> str:
        return f"{self.live.id}.{index}"

    def _note_usage(self, index: int, delta: TokenDelta) -> None:
        if delta.usage is not None:
            self._cached_tokens[index] = delta.usage.cached_tokens
            self._device_s += delta.usage.device_s

    def _usage(self) -> TokenUsage:
        cached: dict[int, int] = {}
        for plan, tokens in zip(self._plans, self._cached_tokens, strict=True):
            cached[plan.prompt] = min(cached.get(plan.prompt, tokens), tokens)
        return TokenUsage(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=sum(decoder.num_tokens for decoder in self._decoders),
            cached_tokens=sum(cached.values()),
            device_s=self._device_s,
            reasoning_tokens=sum(decoder.reasoning_tokens for decoder in self._decoders),
        )

    def _end(self, outcome: str, error: BayardError | None = None) -> None:
        """The one function that ends a request, whatever ended it; later calls find it ended."""
        if not self._ended:
            self._ended = True
            self._on_end(self, Ending(outcome, self._usage(), error))


def finish_reason(delta: TokenDelta, *, asked: bool) -> str:
    """The client's word for how the engine ended a choice; asked: an operator cancelled it.

    Raises: BayardError where it did not end well
    """
    match delta.finish:
        case FinishReason.STOP:
            return "stop"
        case FinishReason.LENGTH:
            return "length"
        case FinishReason.ERROR if delta.error is not None:
            raise error_of(delta.error.code, delta.error.message, delta.error.hint, unknown=WorkerError)
        case FinishReason.ABORT if asked:
            raise Cancelled("An operator ended the request before it was complete.", "Send it again.")
        case FinishReason.ABORT:  # nobody here asked: the worker was told to end by somebody else
            raise WorkerLost("The worker was stopped before the request was complete.", "Send it again.")
        case _:
            raise WorkerLost("The worker ended the request without a reason.", "Send it again.")
