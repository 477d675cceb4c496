"""Steps of prompts, and a draw, that a device runs before any request comes: kernels are compiled, libraries loaded.

Decode steps are warmed as they are recorded; the first prompt would otherwise wait for seconds, and streams beside it.
What these steps write goes to the null page. Owner: the runner.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

import torch

from engine.batch import ForwardBatch, GroupMeta
from engine.devices import Device
from engine.kv.layout import PageLayout
from engine.runner.faults import is_out_of_memory

log = logging.getLogger("bayard.engine")

FEW_IDS = 64  # different ones, so that experts share the tokens
# Queries of each sequence: a short prompt beside a decode, longer ones, and one alone as a library's kernel takes it.
STEPS = ((1, 96), (1, 700), (1, 2047), (768,))


class WarmUp:
    def __init__(
        self,
        forward: Callable[[ForwardBatch], torch.Tensor],
        layout: PageLayout,
        kv_views: Sequence[torch.Tensor],
        device: Device,
        max_context_tokens: int,
        draw: Callable[[], object] | None = None,
    ) -> None:
        """draw: chooses tokens, more than the largest logit's, of rows that are nobody's"""
        self._forward = forward
        self._layout = layout
        self._kv_views = kv_views
        self._device = device
        steps = [queries for queries in STEPS if max(queries) <= max_context_tokens]
        self._waiting: list[Callable[[], object]] = [partial(self._step, queries) for queries in steps]
        if draw is not None:
            self._waiting.append(draw)

    def next(self) -> bool:
        """Run one more. Blocks: while kernels are compiled. False: there is none left."""
        if not self._waiting:
            return False
        try:
            self._waiting.pop(0)()
            self._device.synchronize()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            log.warning("warm_up_out_of_memory %s", error)  # requests take smaller steps then
            self._device.release_unused()
        return True

    def _step(self, queries: Sequence[int]) -> None:
        self._forward(self.batch(queries))

    def batch(self, queries: Sequence[int]) -> ForwardBatch:
        """A step of sequences with so many new tokens; one with a single token has a context behind it."""
        device, page = self._device.torch_device, self._layout.page_tokens
        longest = max(queries)
        contexts = [longest if count == 1 else count for count in queries]
        positions = [
            place for count, context in zip(queries, contexts, strict=True) for place in range(context - count, context)
        ]

        def ints(numbers: Sequence[int], dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.tensor(numbers, dtype=dtype, device=device)

        index = self._device.index_dtype
        ends = torch.tensor(queries).cumsum(0).tolist()
        at = ints(positions, index)
        table = ints([0] * -(-longest // page)).repeat(len(queries), 1)
        group = GroupMeta(table, torch.zeros_like(at), at % page)
        return ForwardBatch(
            token_ids=at % FEW_IDS,
            positions=at,
            query_starts=ints([0, *ends]),
            context_lens=ints(contexts),
            logit_rows=ints([end - 1 for end in ends], index),
            groups=[group] * len(self._layout.groups),
            kv_views=self._kv_views,
            layer_groups=self._layout.layer_groups,
            max_query_tokens=longest,
            max_context_tokens=longest,
        )
