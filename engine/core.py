"""EngineCore: the engine without a process around it. add, abort, step; the worker and the benchmarks drive it.

One function ends a request (`Outbox.finish`), so each gets exactly one terminal TokenDelta, whatever ends it.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Mapping

import msgspec
import torch

from engine.devices import Device
from engine.errors import BayardError, DeadlineExceeded, InvalidParameter, NumericalFault, WorkerError
from engine.grammar import GrammarCompiler, GrammarGate, GrammarState
from engine.kv.buffer import allocate_buffer
from engine.kv.layout import PageLayout
from engine.kv.manager import KvManager
from engine.kv.swap import HostPages
from engine.messages import (
    Embed,
    ErrorInfo,
    FinishReason,
    Knobs,
    StepReport,
    Submit,
    WorkerStats,
)
from engine.runner.faults import lost_device
from engine.runner.forward_model import ForwardModel
from engine.runner.launched import LaunchedStep
from engine.runner.launcher import Launcher
from engine.runner.runner import ModelRunner
from engine.scheduler.chunk import ScheduledChunk
from engine.scheduler.intake import check, submit_of, with_stops_within
from engine.scheduler.outbox import Outbox
from engine.scheduler.request import Request, RequestState
from engine.scheduler.scheduler import Scheduler
from engine.scheduler.totals import Totals

MAX_FAILED_STEPS = 3  # in a row; then the worker is not to be trusted

log = logging.getLogger("bayard.engine")


class EngineCore:
    def __init__(
        self,
        model: ForwardModel,
        layout: PageLayout,
        *,
        num_large_pages: int,
        kv_dtype: torch.dtype,
        device: Device,
        knobs: Knobs,
        max_context_tokens: int,
        vocab_size: int,
        overlap: bool | None = None,
        embeds: bool = False,
        adapters: Mapping[str, int] | None = None,
        generates: bool = True,
        swap_bytes: int = 0,
        clock: Callable[[], float] = time.monotonic,
        grammars: GrammarCompiler | None = None,
    ) -> None:
        """embeds: the model states how its texts become vectors. generates: it has a head.

        adapters: by name, the numbers that the model knows them by.

        grammars: without it requests that ask for one are refused.
        swap_bytes: host memory for the pages of preempted requests; 0: they are computed again.
        """
        self.generates = generates
        self.layout = layout
        self.device = device
        self.kv = KvManager(layout, num_large_pages, prefix_cache=knobs.prefix_cache)
        buffer = allocate_buffer(num_large_pages * layout.large_page_elements, kv_dtype, device.torch_device)
        self.pool = buffer  # behind all pages
        self.max_context_tokens = self.kv.capacity_tokens(max_context_tokens)
        self._host = HostPages(layout, buffer, swap_bytes, device) if swap_bytes else None
        self.scheduler = Scheduler(
            self.kv,
            knobs,
            max_context_tokens=self.max_context_tokens,
            vocab_size=vocab_size,
            host=self._host,
            clock=clock,
        )
        views = layout.views(buffer, num_large_pages)
        self.runner = ModelRunner(
            model, layout, views, device, self.max_context_tokens, vocab_size, embeds=embeds, adapters=adapters
        )
        self.gate = GrammarGate(grammars)
        self._launcher = Launcher(self.runner, device, layout.page_tokens, self._complete_inflight, self._shed)
        self.on_step: Callable[[list[ScheduledChunk]], None] | None = None  # tests and profiles look in here
        self.overlap = device.runs_behind if overlap is None else overlap
        self._inflight: LaunchedStep | None = None
        self._last_completed = 0.0
        self._failed_steps = 0
        self._totals = Totals()
        self._outbox = Outbox(self.scheduler, self._totals, self.runner.release, self.max_context_tokens)

    # ---------------------------------------------------------------- requests

    def add(self, submit: Submit) -> None:
        """Take a request; one that can never run ends at once with an error in the next report.

        One with a grammar waits at the gate until that is compiled, while others run.
        """
        try:
            if not self.generates:
                raise InvalidParameter("This model embeds texts and generates none.", "Ask it for embeddings.")
            submit = with_stops_within(submit, self.scheduler.vocab_size)
            if submit.sampling.grammar is None:
                self._take(submit)
            else:
                self._check_fresh(submit)
                check(submit, vocab_size=self.scheduler.vocab_size, max_context_tokens=self.max_context_tokens)
                self.gate.hold(submit)
        except BayardError as error:
            self._outbox.refuse(submit.request_id, error)

    def _take(self, submit: Submit) -> Request:
        """Raises: BayardError if it could never run."""
        self._check_fresh(submit)
        return self._schedule(submit, None)

    def _check_fresh(self, submit: Submit) -> None:
        if submit.request_id in self.gate:
            raise InvalidParameter(f"A request with id {submit.request_id} is already here.", "Use a fresh id.")

    def _schedule(self, submit: Submit, grammar: GrammarState | None) -> Request:
        """Raises: BayardError if it could never run."""
        if submit.adapter:
            submit = self._of_adapter(submit)
        seed = submit.sampling.seed
        request = self.scheduler.add(submit, seed=secrets.randbits(63) if seed is None else seed)
        request.grammar = grammar
        return request

    def _of_adapter(self, submit: Submit) -> Submit:
        """With cached prompts of its own: an adapter's keys and values are not the base's."""
        if submit.adapter not in self.runner.adapters:
            known = ", ".join(self.runner.adapters) or "none"
            raise InvalidParameter(
                f"There is no adapter {submit.adapter!r} here.", f"There are: {known}.", param="model"
            )
        return msgspec.structs.replace(submit, cache_salt=f"{submit.adapter}\0{submit.cache_salt}")

    def _let_in(self) -> None:
        """Requests whose grammar is compiled, or refused, leave the gate."""
        for released in self.gate.release():
            try:
                if isinstance(released.outcome, BayardError):
                    raise released.outcome
                self._schedule(released.submit, released.outcome)
            except BayardError as error:
                self._outbox.refuse(released.submit.request_id, error)

    def embed(self, command: Embed) -> None:
        """Take a text to embed: a request that ends with its last hidden state in place of a first token."""
        if not self.runner.embeds:
            error = InvalidParameter(
                "This model states no pooling, so its texts have no embeddings.",
                "Ask a model that embeds; /v1/models says which do.",
                param="model",
            )
            self._outbox.refuse(command.request_id, error)
            return
        try:
            self._take(submit_of(command)).embeds = True
        except BayardError as error:
            self._outbox.refuse(command.request_id, error)

    def abort(self, request_id: str) -> None:
        """End a request for its client's sake. An unknown id has already ended: nothing happens."""
        if self.gate.drop(request_id):
            self._totals.aborts += 1
            self._outbox.forget(request_id)
            return
        request = self.scheduler.requests.get(request_id)
        if request is not None:
            self._totals.aborts += 1
            self._outbox.finish(request, FinishReason.ABORT)

    def abort_all(self) -> None:
        for request_id in [*self.scheduler.requests, *self.gate.request_ids]:
            self.abort(request_id)

    def set_knobs(self, knobs: Knobs) -> None:
        """Takes effect with the next step; running streams go on."""
        self.scheduler.set_knobs(knobs)

    def has_work(self) -> bool:
        return bool(self.scheduler.requests or self._outbox.deltas or self._inflight or self.gate.is_ready)

    @property
    def is_compiling(self) -> bool:
        """Whether a request waits for its grammar: has_work may soon be true."""
        return len(self.gate) > 0

    def prepare(self) -> bool:
        """Use an idle moment: get one more thing ready that a later step would wait for. False: all is ready."""
        knobs = self.scheduler.knobs
        return self.runner.prepare(knobs.max_running, knobs.token_budget)

    # ---------------------------------------------------------------- sleep

    @property
    def holders(self) -> tuple[object, ...]:
        """What keeps weights."""
        return self.runner.model, self.scheduler.speculation.drafters

    def settle(self) -> None:
        """Before the pool's memory goes, with no request left: read what runs, forget what is cached."""
        assert not self.scheduler.requests, f"{len(self.scheduler.requests)} requests are there"
        self._complete_inflight()
        self.kv.forget_idle()

    # ---------------------------------------------------------------- a step

    def step(self) -> StepReport:
        """Schedule and launch a step, and report what has ended since the last one.

        With overlap the tokens reported are those of the step before: this one runs while they are read.
        Raises: WorkerError after several failed steps in a row, DeviceLost when there will be no more.
        """
        self._let_in()
        self._end_late()
        # A guess starts from the newest token.
        guessing = self.scheduler.knobs.speculation_tokens > 0 and not self.scheduler.speculation.is_resting
        if self._inflight is not None and (self._inflight.needs_host or guessing):
            self._complete_inflight()
        self.scheduler.chunk_limit = self._launcher.caution.chunk_tokens
        chunks = self.scheduler.schedule()
        launched = self._launch(chunks) if chunks else None
        if not chunks and self._inflight is None and self.scheduler.requests:
            raise AssertionError(
                f"no request can run: {len(self.scheduler.running)=}, {self.scheduler.num_waiting=}, "
                f"{self.kv.num_active=} of {self.kv.num_pages} pages"
            )
        self._complete_inflight()
        self._inflight = launched
        if not self.overlap:
            self._complete_inflight()
        return StepReport(self._outbox.take(), self.stats())

    def _complete_inflight(self) -> None:
        launched, self._inflight = self._inflight, None
        if launched is not None:
            self._complete(launched)

    def stats(self) -> WorkerStats:
        """The engine's own figures; a process adds its beat and its memory."""
        return self._totals.stats(self.scheduler, waiting_elsewhere=len(self.gate))

    def _launch(self, chunks: list[ScheduledChunk]) -> LaunchedStep | None:
        """Queue the step; None if that failed, its requests being ended."""
        self._totals.steps += 1
        if self.on_step is not None:
            self.on_step(chunks)
        began = time.perf_counter()
        try:
            launched = self._launcher.launch(chunks)
        except Exception as error:  # noqa: BLE001 - the border between a step's maths and its requests
            self._fail_step(chunks, error)
            return None
        if launched is None:
            return None
        self.scheduler.speculation.observe(launched.chunks)
        launched.began = began
        for chunk in launched.chunks:
            self.scheduler.launched(chunk)
        return launched

    def _complete(self, launched: LaunchedStep) -> None:
        """Read the step's tokens and tell its requests."""
        try:
            sampled = launched.wait()
        except Exception as error:  # noqa: BLE001 - where a device reports what failed after its launch
            self._fail_step(launched.chunks, error)
            return
        self._failed_steps = 0
        self._launcher.caution.went_well(self.scheduler.knobs.prefill_chunk)
        now = time.perf_counter()
        step_s, self._last_completed = now - max(launched.began, self._last_completed), now
        self._totals.note_step(launched.chunks, step_s)
        self.scheduler.pace.note_chunks(launched.chunks, step_s)
        self.scheduler.speculation.note_step(launched.chunks, step_s)
        share_s = step_s / sum(chunk.num_tokens for chunk in launched.chunks)
        for chunk in launched.chunks:
            request = chunk.request
            if request.state is RequestState.FINISHED:
                continue  # it ended while this step ran: the step's last token is nobody's
            request.device_s += share_s * chunk.num_tokens
            self._totals.count_prompt(chunk)
            result = sampled.get(request.id)
            if result is not None and result.embedding is not None:
                self._outbox.finish(request, FinishReason.STOP, embedding=result.embedding)
                continue
            if result is not None and result.token_id is None:
                fault = NumericalFault("The model's output for this request is not a number.", "Try another precision.")
                self._outbox.fail(request, fault)
                continue
            if result is None or result.token_id is None:
                self.scheduler.completed(chunk, [])
                continue
            tokens = [result.token_id, *result.followed]
            self._totals.drafted += len(chunk.draft)
            self._totals.accepted += len(result.followed)
            self.scheduler.completed(chunk, tokens)
            for token in tokens:
                if request.finish is None:  # an earlier one of them may have been the last
                    self._outbox.deliver(request, token, result.logprob)

    def _end_late(self) -> None:
        """End those whose time is up, wherever they are."""
        for request in self.scheduler.take_expired():
            self._totals.late += 1
            self._outbox.fail(
                request,
                DeadlineExceeded(
                    f"The request's time was up after {request.num_sampled:,} of at most "
                    f"{request.sampling.max_tokens:,} tokens, {request.state} then.",
                    "Give it more time, or fewer tokens to write.",
                ),
            )

    def _shed(self, request: Request, error: BayardError) -> None:
        self._totals.shed += 1
        self._outbox.fail(request, error)

    def _fail_step(self, chunks: list[ScheduledChunk], error: Exception) -> None:
        lost = lost_device(error, str(self.device.torch_device))
        if lost is not None:
            raise lost from error
        self._failed_steps += 1
        log.error("step_failed requests=%d in_a_row=%d", len(chunks), self._failed_steps, exc_info=error)
        if self._failed_steps >= MAX_FAILED_STEPS:
            raise WorkerError(
                f"{self._failed_steps} steps failed in a row, the last with {type(error).__name__}: {error}",
                "See the worker's log.",
            ) from error
        info = ErrorInfo("worker_error", f"A step failed with {type(error).__name__}: {error}")
        for chunk in chunks:
            if chunk.request.state is not RequestState.FINISHED:
                self._outbox.finish(chunk.request, FinishReason.ERROR, info)
