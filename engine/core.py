"""EngineCore: the engine without a process around it. add, abort, step; the worker and the benchmarks drive it.

One function ends a request (`_finish`), so each gets exactly one terminal TokenDelta, whatever ends it.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from engine.batch import ForwardBatch
from engine.errors import BayardError, NumericalFault, WorkerError
from engine.kv.buffer import allocate_buffer
from engine.kv.layout import PageLayout
from engine.kv.manager import KvManager
from engine.messages import (
    ErrorInfo,
    FinishReason,
    Knobs,
    StepReport,
    Submit,
    TokenDelta,
    TokenLogprob,
    WorkerStats,
)
from engine.runner.inputs import build_batch
from engine.runner.sampler import Sampled, sample
from engine.scheduler.request import Request
from engine.scheduler.scheduler import ScheduledChunk, Scheduler

MAX_FAILED_STEPS = 3  # in a row; then the worker is not to be trusted


class ForwardModel(Protocol):
    """What the core asks of a model."""

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        """Logits [R, vocab] float32 for batch.logit_rows."""
        ...


class EngineCore:
    def __init__(
        self,
        model: ForwardModel,
        layout: PageLayout,
        *,
        num_large_pages: int,
        kv_dtype: torch.dtype,
        device: torch.device,
        knobs: Knobs,
        max_context_tokens: int,
        vocab_size: int,
    ) -> None:
        self.model = model
        self.layout = layout
        self.device = device
        self.kv = KvManager(layout, num_large_pages, prefix_cache=knobs.prefix_cache)
        buffer = allocate_buffer(num_large_pages * layout.large_page_elements, kv_dtype, device)
        self._kv_views: Sequence[torch.Tensor] = layout.views(buffer, num_large_pages)
        self.max_context_tokens = min(max_context_tokens, self.kv.capacity_tokens())
        self.scheduler = Scheduler(self.kv, knobs, max_context_tokens=self.max_context_tokens, vocab_size=vocab_size)
        self.on_step: Callable[[list[ScheduledChunk]], None] | None = None  # tests and profiles look in here
        self._pending: list[TokenDelta] = []
        self._failed_steps = 0
        self._step = 0
        self._last_step_s = 0.0
        self._totals = {"prompt": 0, "cached": 0, "output": 0, "aborts": 0}

    # ---------------------------------------------------------------- requests

    def add(self, submit: Submit) -> None:
        """Take a request; one that can never run ends at once with an error in the next report."""
        seed = submit.sampling.seed
        try:
            self.scheduler.add(submit, seed=secrets.randbits(63) if seed is None else seed)
        except BayardError as error:
            self._pending.append(TokenDelta(submit.request_id, finish=FinishReason.ERROR, error=error_info(error)))

    def abort(self, request_id: str) -> None:
        """End a request for its client's sake. An unknown id has already ended: nothing happens."""
        request = self.scheduler.requests.get(request_id)
        if request is not None:
            self._totals["aborts"] += 1
            self._pending.append(self._finish(request, FinishReason.ABORT))

    def abort_all(self) -> None:
        for request_id in list(self.scheduler.requests):
            self.abort(request_id)

    def set_knobs(self, knobs: Knobs) -> None:
        """Takes effect with the next step; running streams go on."""
        self.scheduler.knobs = knobs
        self.kv.prefix_cache = knobs.prefix_cache

    def has_work(self) -> bool:
        return bool(self.scheduler.requests or self._pending)

    # ---------------------------------------------------------------- a step

    def step(self) -> StepReport:
        """Compute one step. Raises: WorkerError after several failed steps in a row."""
        began = time.perf_counter()
        deltas, self._pending = self._pending, []
        chunks = self.scheduler.schedule()
        if chunks:
            self._step += 1
            if self.on_step is not None:
                self.on_step(chunks)
            deltas += self._compute(chunks, began)
            self._last_step_s = time.perf_counter() - began
        elif self.scheduler.requests:
            raise AssertionError(
                f"no request can run: {len(self.scheduler.running)=}, {self.scheduler.num_waiting=}, "
                f"{self.kv.num_active=} of {self.kv.num_pages} pages"
            )
        return StepReport(deltas, self.stats())

    def stats(self, beat: int = 0, rss_bytes: int = 0, device_bytes: int = 0) -> WorkerStats:
        return WorkerStats(
            step=self._step,
            beat=beat,
            running=len(self.scheduler.running),
            waiting=self.scheduler.num_waiting,
            kv_pages_total=self.kv.num_pages,
            kv_pages_active=self.kv.num_active,
            kv_pages_cached=self.kv.num_idle,
            page_tokens=self.layout.page_tokens,
            prompt_tokens_total=self._totals["prompt"],
            cached_tokens_total=self._totals["cached"],
            output_tokens_total=self._totals["output"],
            preemptions_total=self.scheduler.preemptions_total,
            aborts_total=self._totals["aborts"],
            last_step_s=self._last_step_s,
            rss_bytes=rss_bytes,
            device_bytes=device_bytes,
            knobs=self.scheduler.knobs,
        )

    def _compute(self, chunks: list[ScheduledChunk], began: float) -> list[TokenDelta]:
        try:
            sampled = self._forward(chunks)
        except Exception as error:  # the border between a step's maths and the requests it serves
            self._failed_steps += 1
            if self._failed_steps >= MAX_FAILED_STEPS:
                raise WorkerError(
                    f"{self._failed_steps} steps failed in a row, the last with {type(error).__name__}: {error}",
                    "See the worker's log.",
                ) from error
            info = ErrorInfo("worker_error", f"A step failed with {type(error).__name__}: {error}")
            return [self._finish(chunk.request, FinishReason.ERROR, info) for chunk in chunks]
        self._failed_steps = 0
        share_s = (time.perf_counter() - began) / sum(chunk.num_tokens for chunk in chunks)
        deltas = []
        for chunk in chunks:
            request = chunk.request
            request.device_s += share_s * chunk.num_tokens
            if request.preemptions == 0 and chunk.start < request.num_prompt:
                self._totals["prompt"] += chunk.num_tokens
                if chunk.start == request.cached_tokens:
                    self._totals["cached"] += request.cached_tokens
            result = sampled.get(request.id)
            if result is None:
                self.scheduler.advance(chunk, None)
            elif result.token_id is None:
                fault = NumericalFault("The model's output for this request is not a number.", "Try another precision.")
                deltas.append(self._finish(request, FinishReason.ERROR, error_info(fault)))
            else:
                self.scheduler.advance(chunk, result.token_id)
                deltas.append(self._deliver(request, result.token_id, result.logprob))
        return deltas

    def _forward(self, chunks: list[ScheduledChunk]) -> dict[str, Sampled]:
        batch = build_batch(chunks, self.layout, self._kv_views, self.device)
        with torch.inference_mode():
            logits = self.model.forward(batch)
            samplers = [chunk.request for chunk in chunks if chunk.samples]
            results = sample(logits, samplers) if samplers else []
        return {request.id: result for request, result in zip(samplers, results, strict=True)}

    def _deliver(self, request: Request, token: int, logprob: TokenLogprob | None) -> TokenDelta:
        """The new token, and the end if it is one. A stop token ends the request and is not delivered itself."""
        self._totals["output"] += 1
        p = request.sampling
        if not p.ignore_eos and token in p.stop_token_ids and request.num_output > p.min_tokens:
            return self._finish(request, FinishReason.STOP)
        logprobs = None if logprob is None else [logprob]
        if request.num_output >= p.max_tokens or len(request.token_ids) >= self.max_context_tokens:
            return self._finish(request, FinishReason.LENGTH, token_ids=[token], logprobs=logprobs)
        return TokenDelta(request.id, [token], logprobs)

    def _finish(
        self,
        request: Request,
        reason: FinishReason,
        error: ErrorInfo | None = None,
        token_ids: list[int] | None = None,
        logprobs: list[TokenLogprob] | None = None,
    ) -> TokenDelta:
        usage = request.usage()
        self.scheduler.finish(request, reason)
        return TokenDelta(request.id, token_ids or [], logprobs, reason, error, usage)


def error_info(error: BayardError) -> ErrorInfo:
    return ErrorInfo(error.code, error.message, error.hint)
