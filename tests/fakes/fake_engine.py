"""An engine client without a process: streams what a test tells it to. Stands for engine.client.EngineClient."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from engine.messages import ErrorInfo, FinishReason, Knobs, Submit, TokenDelta, TokenLogprob, Usage, WorkerStats
from tests.fakes.fake_text import EOS


@dataclass
class FakeEngine:
    """reply is written byte by byte; then STOP. hold stops every stream before its first token until it is set."""

    reply: str = "Hello there, Paris!"
    burst: int = 1  # tokens a delta
    token_s: float = 0.0
    fail_after: int | None = None  # tokens, then an error
    error: ErrorInfo = field(default_factory=lambda: ErrorInfo("worker_lost", "The worker is gone.", "Try again."))
    hold: asyncio.Event | None = None
    submitted: list[Submit] = field(default_factory=list)
    open: dict[str, asyncio.Event] = field(default_factory=dict)
    aborted: list[str] = field(default_factory=list)
    peak_open: int = 0
    stats: WorkerStats | None = field(default_factory=lambda: WorkerStats(knobs=Knobs()))

    @property
    def inflight(self) -> int:
        return len(self.open)

    async def submit(self, submit: Submit) -> AsyncIterator[TokenDelta]:
        self.submitted.append(submit)
        stopping = self.open[submit.request_id] = asyncio.Event()
        self.peak_open = max(self.peak_open, len(self.open))
        finished = False
        try:
            async for delta in self._deltas(submit, stopping):
                finished = delta.finish is not None
                yield delta
        finally:
            self.open.pop(submit.request_id, None)
            if not finished:
                self.aborted.append(submit.request_id)

    async def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)
        if request_id in self.open:
            self.open[request_id].set()

    async def _deltas(self, submit: Submit, stopping: asyncio.Event) -> AsyncIterator[TokenDelta]:
        if self.hold is not None:
            await first_of(self.hold, stopping)
        sampling = submit.sampling
        tokens = [*self.reply.encode(), EOS]
        written = 0
        while True:
            await asyncio.sleep(self.token_s)
            if stopping.is_set():
                yield self._last(submit, written, FinishReason.ABORT)
                return
            if self.fail_after is not None and written >= self.fail_after:
                yield TokenDelta(submit.request_id, finish=FinishReason.ERROR, error=self.error)
                return
            ids: list[int] = []
            finish = None
            while len(ids) < self.burst and finish is None:
                token = tokens[written % len(tokens)]
                if token == EOS and not sampling.ignore_eos:
                    finish = FinishReason.STOP
                    break
                written += 1
                ids.append(token)
                if written >= sampling.max_tokens:
                    finish = FinishReason.LENGTH
            logprobs = None
            if sampling.top_logprobs is not None:
                logprobs = [
                    TokenLogprob(i, -0.25, [(i - k, -0.25 - k) for k in range(sampling.top_logprobs)]) for i in ids
                ]
            if finish is not None:
                yield self._last(submit, written, finish, ids, logprobs)
                return
            yield TokenDelta(submit.request_id, ids, logprobs)

    def _last(
        self,
        submit: Submit,
        written: int,
        finish: FinishReason,
        ids: list[int] | None = None,
        logprobs: list[TokenLogprob] | None = None,
    ) -> TokenDelta:
        usage = Usage(len(submit.prompt_token_ids), cached_tokens=3, output_tokens=written, device_s=0.5)
        return TokenDelta(submit.request_id, ids or [], logprobs, finish, usage=usage)


async def first_of(*events: asyncio.Event) -> None:
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
