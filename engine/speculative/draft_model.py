"""Drafts from a second, small model of the same tokens, with pages of its own.

Each request has a shadow: the same tokens in the small model's pages. What a shadow has computed of guesses that were
wrong is written over; a long prompt is taken in over several steps, and no guess is made before it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.devices import Device
from engine.kv.buffer import allocate_buffer
from engine.kv.layout import PageLayout
from engine.kv.manager import KvManager
from engine.messages import SamplingParams
from engine.runner.forward_model import ForwardModel
from engine.runner.runner import ModelRunner
from engine.scheduler.chunk import ScheduledChunk
from engine.scheduler.request import Request
from engine.speculative.drafter import Wish

_GREEDY = SamplingParams(max_tokens=1, temperature=0.0)


@dataclass(slots=True)
class _Shadow:
    request: Request
    known: int = 0  # its leading tokens that are the request's own, and not guesses


class DraftModel:
    """See Drafter."""

    name = "draft model"
    free = False
    _keeps_right_guesses = True  # what was computed of guesses that were right is as good as computed again

    def __init__(
        self,
        model: ForwardModel,
        layout: PageLayout,
        *,
        num_large_pages: int,
        kv_dtype: torch.dtype,
        device: Device,
        max_context_tokens: int,
        vocab_size: int,
        target_vocab_size: int,
        chunk_tokens: int = 256,
    ) -> None:
        """chunk_tokens: of prompts, taken in in one step."""
        self.kv = KvManager(layout, num_large_pages, prefix_cache=False)
        buffer = allocate_buffer(num_large_pages * layout.large_page_elements, kv_dtype, device.torch_device)
        self._max_context_tokens = self.kv.capacity_tokens(max_context_tokens)
        views = layout.views(buffer, num_large_pages)
        self._runner = ModelRunner(model, layout, views, device, self._max_context_tokens, vocab_size)
        self._target_vocab_size = target_vocab_size
        self._chunk_tokens = chunk_tokens
        self._shadows: dict[str, _Shadow] = {}

    def propose(self, wishes: Sequence[Wish]) -> dict[str, list[int]]:
        """Blocks: for as many small steps as the longest draft has tokens."""
        self.kv.tick()
        counts = {request.id: count for request, count in wishes}
        shadows = [self._shadow_of(request) for request, _ in wishes]
        active = self._catch_up(shadows)
        drafts: dict[str, list[int]] = {shadow.id: [] for shadow in active}
        while active:
            chunks = [chunk for shadow in active if (chunk := self._chunk(shadow, shadow.num_uncomputed)) is not None]
            tokens = self._run(chunks)
            active = []
            for chunk in chunks:
                shadow, token = chunk.request, tokens.get(chunk.request.id)
                if token is None or token >= self._target_vocab_size:
                    continue
                shadow.token_ids.append(token)
                draft = drafts[shadow.id]
                draft.append(token)
                if len(draft) < counts[shadow.id]:
                    active.append(shadow)
        return {request_id: draft for request_id, draft in drafts.items() if draft}

    def observe(self, chunks: Sequence[ScheduledChunk]) -> None:
        """Its own steps are all it needs."""

    def release(self, request_id: str) -> None:
        shadow = self._shadows.pop(request_id, None)
        if shadow is not None:
            self.kv.close(shadow.request.pages)
            self._runner.release(shadow.request)

    def check_integrity(self) -> None:
        """Raise AssertionError unless pages and shadows agree. Slow: for tests."""
        self.kv.check_integrity(shadow.request.pages for shadow in self._shadows.values())

    def _shadow_of(self, request: Request) -> Request:
        """The request's shadow with the request's tokens, its guesses forgotten as far as they were wrong."""
        shadow = self._shadows.get(request.id)
        if shadow is None:
            pages = self.kv.open(request.id, "")
            shadow = self._shadows[request.id] = _Shadow(
                Request(request.id, [], request.num_prompt, _GREEDY, 0, request.standing, request.order, pages)
            )
        own, tokens = shadow.request, self._tokens_of(request)
        agree = shadow.known
        most = min(len(own.token_ids), len(tokens)) if self._keeps_right_guesses else agree
        while agree < most and own.token_ids[agree] == tokens[agree]:
            agree += 1
        own.token_ids[agree:] = tokens[agree:]
        own.num_computed = min(own.num_computed, agree)
        shadow.known = len(own.token_ids)
        self.kv.computed(own.pages, own.token_ids, own.num_computed)
        return own

    def _tokens_of(self, request: Request) -> list[int]:
        """What the request's shadow is made of."""
        return request.token_ids

    def _catch_up(self, shadows: list[Request]) -> list[Request]:
        """Compute what is missing of prompts, as far as a step may; the shadows that can guess now."""
        budget = self._chunk_tokens
        chunks = []
        for shadow in shadows:
            missing = shadow.num_uncomputed - 1
            if missing > len(shadow.token_ids) // 2 or missing > budget:
                taken = min(missing, budget)
                chunk = self._chunk(shadow, taken) if taken > 0 else None
                if chunk is not None:
                    chunks.append(chunk)
                    budget -= taken
        if chunks:
            self._run(chunks)
            for chunk in chunks:
                self.kv.computed(chunk.request.pages, chunk.request.token_ids, chunk.request.num_computed)
        return [
            shadow
            for shadow in shadows
            if 0 < shadow.num_uncomputed <= self._chunk_tokens and len(shadow.token_ids) < self._max_context_tokens
        ]

    def _chunk(self, shadow: Request, num_tokens: int) -> ScheduledChunk | None:
        """The shadow's next tokens to compute; None where there are no pages for them."""
        end = shadow.num_computed + num_tokens
        if end > self._max_context_tokens or not self.kv.grow(shadow.pages, end):
            return None
        return ScheduledChunk(shadow, shadow.num_computed, num_tokens, end == len(shadow.token_ids), shadow.preemptions)

    def _run(self, chunks: list[ScheduledChunk]) -> dict[str, int | None]:
        """The tokens that follow, by request id. Mutates: num_computed."""
        if not chunks:
            return {}
        sampled = self._runner.launch(chunks).wait()
        for chunk in chunks:
            chunk.request.num_computed = chunk.start + chunk.num_tokens
        return {request_id: result.token_id for request_id, result in sampled.items()}
