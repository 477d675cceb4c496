"""An engine client without a process: streams what a test tells it to. Stands for engine.client.EngineClient."""

from __future__ import annotations

import asyncio
import math
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from engine.messages import Embed, ErrorInfo, FinishReason, Knobs, Submit, TokenDelta, TokenLogprob, Usage, WorkerStats
from tests.fakes.fake_text import EOS


@dataclass
class FakeEngine:
    """reply is written byte by byte; then STOP. hold stops every stream before its first token until it is set."""

    reply: str = "Hello there, Paris!"
    replies: dict[int, str] = field(default_factory=dict)  # by number of the choice, instead of reply
    logprob_of: dict[str, float] = field(default_factory=dict)  # of every token of a reply; else -0.25
    burst: int = 1  # tokens a delta
    token_s: float = 0.0
    fail_after: int | None = None  # tokens, then an error
    error: ErrorInfo = field(default_factory=lambda: ErrorInfo("worker_lost", "The worker is gone.", "Try again."))
    hold: asyncio.Event | None = None
    dimensions: int = 8  # of an embedding
    submitted: list[Submit] = field(default_factory=list)
    embedded: list[Embed] = field(default_factory=list)
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

    async def embed(self, embed: Embed) -> TokenDelta:
        """A vector of length one that depends on the tokens alone: how often each of them comes, by its residue."""
        self.embedded.append(embed)
        stopping = self.open[embed.request_id] = asyncio.Event()
        self.peak_open = max(self.peak_open, len(self.open))
        finished = False
        try:
            if self.hold is not None:
                await first_of(self.hold, stopping)
            await asyncio.sleep(self.token_s)
            finished = True
            usage = Usage(len(embed.prompt_token_ids), device_s=0.25)
            if stopping.is_set():
                return TokenDelta(embed.request_id, finish=FinishReason.ABORT, usage=usage)
            if self.fail_after is not None:
                return TokenDelta(embed.request_id, finish=FinishReason.ERROR, error=self.error)
            vector = unit_vector(embed.prompt_token_ids, self.dimensions)
            return TokenDelta(embed.request_id, finish=FinishReason.STOP, usage=usage, embedding=vector)
        finally:
            self.open.pop(embed.request_id, None)
            if not finished:
                self.aborted.append(embed.request_id)

    async def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)
        if request_id in self.open:
            self.open[request_id].set()

    async def _deltas(self, submit: Submit, stopping: asyncio.Event) -> AsyncIterator[TokenDelta]:
        if self.hold is not None:
            await first_of(self.hold, stopping)
        sampling = submit.sampling
        reply = self.replies.get(int(submit.request_id.rpartition(".")[2]), self.reply)
        logprob = self.logprob_of.get(reply, -0.25)
        tokens = [*reply.encode(), EOS]
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
                    TokenLogprob(i, logprob, [(i - k, logprob - k) for k in range(sampling.top_logprobs)]) for i in ids
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
        usage = Usage(
            len(submit.prompt_token_ids),
            cached_tokens=min(3, len(submit.prompt_token_ids)),
            output_tokens=written,
            device_s=0.5,
        )
        return TokenDelta(submit.request_id, ids or [], logprobs, finish, usage=usage)


def unit_vector(token_ids: list[int], dimensions: int) -> bytes:
    counts = [0.0] * dimensions
    for token_id in token_ids:
        counts[token_id % dimensions] += 1.0
    length = math.sqrt(sum(count * count for count in counts))
    return struct.pack(f"<{dimensions}f", *(count / length for count in counts))


async def first_of(*events: asyncio.Event) -> None:
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
