"""EncoderCore: what EngineCore is to a decoder. add refuses, embed queues, step computes one batch of texts."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Protocol

import torch

from engine.encoder.waiting import WaitingText, WaitingTexts
from engine.errors import BayardError, ContextTooLong, DeadlineExceeded, InvalidParameter, NumericalFault, WorkerError
from engine.messages import (
    Embed,
    ErrorInfo,
    FinishReason,
    Knobs,
    StepReport,
    Submit,
    TokenDelta,
    Usage,
    WorkerStats,
)
from engine.scheduler.intake import check_turn

MAX_FAILED_STEPS = 3  # in a row; then the worker is not to be trusted

log = logging.getLogger("bayard.engine")


class TextModel(Protocol):
    """What is asked of a model: engine.models.encoder.Encoder, or a stand-in."""

    def embed(self, texts: Sequence[Sequence[int]]) -> torch.Tensor:
        """[len(texts), dimensions] float32, each of length one"""
        ...


class EncoderCore:
    num_pages = 0
    page_tokens = 0

    def __init__(self, model: TextModel, *, knobs: Knobs, max_context_tokens: int, vocab_size: int) -> None:
        self.max_context_tokens = max_context_tokens
        self._model = model
        self._knobs = knobs
        self._vocab_size = vocab_size
        self._waiting = WaitingTexts()
        self._pending: list[TokenDelta] = []
        self._failed_steps = 0
        self._step = 0
        self._last_step_s = 0.0
        self._prompt_tokens = 0
        self._aborts = 0

    # ---------------------------------------------------------------- requests

    def add(self, submit: Submit) -> None:
        """Refuse: nothing can be generated here. The refusal is in the next report."""
        error = InvalidParameter("This model embeds texts and generates none.", "Ask it for embeddings.", param="model")
        self._refuse(submit.request_id, error)

    def embed(self, command: Embed) -> None:
        """Queue a text; one that can never be embedded ends at once with an error in the next report."""
        try:
            self._check(command)
        except BayardError as error:
            self._refuse(command.request_id, error)
        else:
            self._waiting.add(WaitingText(command, time.monotonic()))

    def abort(self, request_id: str) -> None:
        """End a request for its client's sake. An unknown id has already ended: nothing happens."""
        text = self._waiting.remove(request_id)
        if text is not None:
            self._aborts += 1
            self._end(text, FinishReason.ABORT)

    def abort_all(self) -> None:
        for text in self._waiting:
            self.abort(text.command.request_id)

    def set_knobs(self, knobs: Knobs) -> None:
        """Takes effect with the next step. max_running are the texts in it, token_budget their tokens."""
        self._knobs = knobs

    def has_work(self) -> bool:
        return bool(self._waiting or self._pending)

    @property
    def holders(self) -> tuple[object, ...]:
        """What keeps weights."""
        return (self._model,)

    def prepare(self) -> bool:
        """There is nothing to get ready."""
        return False

    # ---------------------------------------------------------------- a step

    def step(self) -> StepReport:
        """Embed one batch. Raises: WorkerError after several failed steps in a row."""
        for late in self._waiting.overdue(time.monotonic()):
            error = DeadlineExceeded("The text was still waiting when its time was over.", "Allow it more time.")
            self._end(late, FinishReason.ERROR, error_info(error))
        batch = self._waiting.take(self._knobs.max_running, self._knobs.token_budget)
        if batch:
            self._compute(sorted(batch, key=lambda text: text.num_tokens))  # neighbours alike: less padding
        deltas, self._pending = self._pending, []
        return StepReport(deltas, self.stats())

    def stats(self) -> WorkerStats:
        """The engine's own figures; a process adds its beat and its memory."""
        return WorkerStats(
            step=self._step,
            waiting=len(self._waiting),
            prompt_tokens_total=self._prompt_tokens,
            aborts_total=self._aborts,
            last_step_s=self._last_step_s,
            knobs=self._knobs,
        )

    def _compute(self, batch: list[WaitingText]) -> None:
        self._step += 1
        began = time.perf_counter()
        try:
            vectors = self._model.embed([text.command.prompt_token_ids for text in batch]).cpu()
        except Exception as error:  # noqa: BLE001 - the border between a step's maths and its requests
            self._fail_step(batch, error)
            return
        self._failed_steps = 0
        self._last_step_s = time.perf_counter() - began
        tokens = sum(text.num_tokens for text in batch)
        self._prompt_tokens += tokens
        finite = torch.isfinite(vectors).all(dim=1).tolist()
        for text, vector, is_finite in zip(batch, vectors.numpy(), finite, strict=True):
            share_s = self._last_step_s * text.num_tokens / tokens
            if is_finite:
                self._end(text, FinishReason.STOP, embedding=vector.astype("<f4").tobytes(), device_s=share_s)
            else:
                fault = NumericalFault("The model's output for this text is not a number.", "Try another precision.")
                self._end(text, FinishReason.ERROR, error_info(fault), device_s=share_s)

    def _fail_step(self, batch: list[WaitingText], error: Exception) -> None:
        self._failed_steps += 1
        log.error("step_failed requests=%d in_a_row=%d", len(batch), self._failed_steps, exc_info=error)
        if self._failed_steps >= MAX_FAILED_STEPS:
            raise WorkerError(
                f"{self._failed_steps} steps failed in a row, the last with {type(error).__name__}: {error}",
                "See the worker's log.",
            ) from error
        info = ErrorInfo("worker_error", f"A step failed with {type(error).__name__}: {error}")
        for text in batch:
            self._end(text, FinishReason.ERROR, info)

    def _check(self, command: Embed) -> None:
        tokens = command.prompt_token_ids
        if command.request_id in self._waiting:
            raise InvalidParameter(f"A request with id {command.request_id} is already here.", "Use a fresh id.")
        if command.adapter:
            raise InvalidParameter(f"An encoder has no adapter {command.adapter!r}.", "Leave it out.", param="model")
        check_turn(command.weight, command.deadline_s)
        if not tokens:
            raise InvalidParameter("The text has no tokens.", "Send at least one token.", param="input")
        if len(tokens) > self.max_context_tokens:
            raise ContextTooLong(
                f"The text has {len(tokens):,} tokens; this model embeds at most {self.max_context_tokens:,}.",
                "Cut it in parts and embed each.",
                param="input",
            )
        stranger = next((token for token in (min(tokens), max(tokens)) if not 0 <= token < self._vocab_size), None)
        if stranger is not None:
            raise InvalidParameter(
                f"Token ids must lie in 0..{self._vocab_size - 1}; the text has {stranger}.",
                "Tokenise with this model's own tokenizer.",
                param="input",
            )

    def _refuse(self, request_id: str, error: BayardError) -> None:
        self._pending.append(TokenDelta(request_id, finish=FinishReason.ERROR, error=error_info(error)))

    def _end(
        self,
        text: WaitingText,
        reason: FinishReason,
        error: ErrorInfo | None = None,
        *,
        embedding: bytes | None = None,
        device_s: float = 0.0,
    ) -> None:
        usage = Usage(prompt_tokens=text.num_tokens, device_s=device_s)
        self._pending.append(
            TokenDelta(text.command.request_id, finish=reason, error=error, usage=usage, embedding=embedding)
        )


def error_info(error: BayardError) -> ErrorInfo:
    return ErrorInfo(error.code, error.message, error.hint)
