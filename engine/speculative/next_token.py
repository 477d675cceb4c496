"""Drafts from the layer for speculation that a checkpoint was trained with: multi-token prediction.

The layer reads the model's own last state at a token beside the embedding of the token after it, and says the one after
that; for more than one guess its own state takes the place of the model's. Source: the DeepSeek V3 report, section 2.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.batch import ForwardBatch
from engine.devices import Device
from engine.kv.layout import PageLayout
from engine.layers.embedding import Embedding
from engine.layers.ops import Ops
from engine.runner.forward_model import EmbeddingModel
from engine.scheduler.chunk import ScheduledChunk
from engine.scheduler.request import Request
from engine.speculative.draft_model import DraftModel

MOST_STATES = 1_024  # of a prompt's end; what is older is not looked at by the layer


class StateKeeper:
    """A ForwardModel that leaves the last states of all tokens of a step for a NextTokenDrafter."""

    replayable = False  # a graph would leave them in one place for every step

    def __init__(self, model: EmbeddingModel) -> None:
        self.model = model
        self.states: Tensor | None = None  # [T, hidden] of the newest step

    def forward(self, batch: ForwardBatch) -> Tensor:
        self.states = self.hidden(_with_rows(batch, torch.arange(batch.num_tokens, device=batch.token_ids.device)))
        if batch.logit_rows.shape[0] == 0:
            return torch.empty(0, device=self.states.device)
        return self.logits(self.states[batch.logit_rows])

    def hidden(self, batch: ForwardBatch) -> Tensor:
        return self.model.hidden(batch)

    def logits(self, states: Tensor) -> Tensor:
        return self.model.logits(states)


class NextTokenInput:
    """Stands where the layer's embedding does: tokens' embeddings joined with the states before them."""

    def __init__(self, embed: Embedding, ops: Ops, token_norm: Tensor, state_norm: Tensor, join: Tensor, eps: float):
        """Shapes: norms [hidden]; join [hidden, 2 * hidden], the embedding's half first"""
        self._embed, self._ops, self._eps = embed, ops, eps
        self._token_norm, self._state_norm, self._join = token_norm, state_norm, join
        self.states: Tensor | None = None  # [T, hidden], set before each step

    def __call__(self, token_ids: Tensor, dtype: torch.dtype) -> Tensor:
        assert self.states is not None
        assert self.states.shape[0] == token_ids.shape[0], "a state for each token"
        tokens = self._ops.rms_norm(self._embed(token_ids, dtype), self._token_norm, self._eps)
        states = self._ops.rms_norm(self.states.to(dtype), self._state_norm, self._eps)
        return F.linear(torch.cat((tokens, states), dim=-1), self._join)


class NextTokenModel:
    """The layer as a ForwardModel that keeps its own states."""

    replayable = False

    def __init__(self, model: EmbeddingModel, entry: NextTokenInput) -> None:
        self.entry = entry
        self.states: Tensor | None = None  # [R, hidden] of the newest step's last rows
        self._model = model

    def forward(self, batch: ForwardBatch) -> Tensor:
        if batch.logit_rows.shape[0]:
            self.states = self._model.hidden(batch)
            return self._model.logits(self.states)
        last = torch.tensor([batch.num_tokens - 1], device=batch.token_ids.device)
        self.states = self._model.hidden(_with_rows(batch, last))[:0]
        return torch.empty(0, device=self.states.device)


def _with_rows(batch: ForwardBatch, rows: Tensor) -> ForwardBatch:
    return replace(batch, logit_rows=rows.to(batch.logit_rows.dtype))


class _States:
    """One request's states from some token on. Row i belongs to token base + i."""

    def __init__(self, base: int) -> None:
        self.base = base
        self.rows: list[Tensor] = []
        self.count = 0  # of rows in all
        self.dropped = 0  # leading rows that are no more needed

    def put(self, at: int, rows: Tensor) -> None:
        """Rows from place `at` on; what stood there is of wrong guesses, or computed again."""
        self._cut(at)
        self.rows.append(rows)
        self.count = at + rows.shape[0]

    def between(self, start: int, end: int) -> Tensor:
        return torch.cat(self.rows)[start - self.dropped : end - self.dropped]

    def drop(self, before: int) -> None:
        if before > self.dropped and self.rows:
            kept = self.between(before, self.count).clone()
            self.rows, self.dropped = [kept], before

    def _cut(self, at: int) -> None:
        if at < self.count:
            kept = self.between(self.dropped, at).clone() if at > self.dropped else None
            self.rows = [] if kept is None else [kept]
            self.count = at


class NextTokenDrafter(DraftModel):
    """See Drafter. Its shadows hold a request's tokens from the second on: place i is read with token i's state."""

    name = "next-token layer"
    _keeps_right_guesses = False  # they were computed with the layer's own states

    def __init__(
        self,
        model: NextTokenModel,
        target: StateKeeper,
        layout: PageLayout,
        *,
        num_large_pages: int,
        kv_dtype: torch.dtype,
        device: Device,
        max_context_tokens: int,
        vocab_size: int,
        chunk_tokens: int = 256,
    ) -> None:
        super().__init__(
            model,
            layout,
            num_large_pages=num_large_pages,
            kv_dtype=kv_dtype,
            device=device,
            max_context_tokens=max_context_tokens,
            vocab_size=vocab_size,
            target_vocab_size=vocab_size,
            chunk_tokens=chunk_tokens,
        )
        self._model = model
        self.target = target  # takes the model's place in the engine
        self._states: dict[str, _States] = {}

    def observe(self, chunks: Sequence[ScheduledChunk]) -> None:
        """Take the states that the model's newest step left."""
        states, self.target.states = self.target.states, None
        if states is None:
            return
        at = 0
        for chunk in chunks:
            rows = states[at : at + chunk.num_tokens]
            at += chunk.num_tokens
            known = self._states.get(chunk.request.id)
            place = chunk.start - (known.base if known is not None else 0)
            if known is None or place < known.dropped or place > known.count:
                self.release(chunk.request.id)  # it begins anew, after a cached prefix or a preemption
                known, place = self._states.setdefault(chunk.request.id, _States(chunk.start)), 0
            known.put(place, rows)
            if chunk.request.id not in self._shadows and known.count > MOST_STATES:
                excess = known.count - MOST_STATES
                known.drop(excess)
                known.base, known.dropped, known.count = known.base + excess, 0, MOST_STATES

    def release(self, request_id: str) -> None:
        super().release(request_id)
        self._states.pop(request_id, None)

    def _tokens_of(self, request: Request) -> list[int]:
        known = self._states.get(request.id)
        return [] if known is None else request.token_ids[known.base + 1 :]

    def _shadow_of(self, request: Request) -> Request:
        own = super()._shadow_of(request)
        known = self._states.get(request.id)
        if known is not None:
            known.drop(own.num_computed)
        return own

    def _run(self, chunks: list[ScheduledChunk]) -> dict[str, int | None]:
        if not chunks:
            return {}
        own = [self._states[chunk.request.id] for chunk in chunks]
        ends = [(chunk.start, chunk.start + chunk.num_tokens) for chunk in chunks]
        self._model.entry.states = torch.cat([s.between(*end) for s, end in zip(own, ends, strict=True)])
        tokens = super()._run(chunks)
        assert self._model.states is not None
        sampling = [(state, end) for state, end, chunk in zip(own, ends, chunks, strict=True) if chunk.samples]
        for row, (state, (_, end)) in enumerate(sampling):
            state.put(end, self._model.states[row : row + 1])
        return tokens
