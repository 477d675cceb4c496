"""Decode steps on the host without a batch made of them, for models that run a whole step in one call.

A decode step of a small model takes a few milliseconds, and making tensors for it is a tenth of that: here the rows go
straight into buffers that the model reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from engine.kv.layout import PageLayout
from engine.runner.graphs import bucket_of
from engine.scheduler.chunk import ScheduledChunk
from engine.scheduler.request import PENDING


class DecodeBuffers(Protocol):
    """Of up to `rows` sequences; see engine.kernels.cpu.decode."""

    rows: int
    token_ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    write_offsets: NDArray[np.int64]
    context_lens: NDArray[np.int32]
    write_pages: list[NDArray[np.int64]]
    tables: list[NDArray[np.int32]]
    logits: torch.Tensor
    picked: NDArray[np.int64]

    def run(self, count: int) -> None: ...


@runtime_checkable
class WholeStep(Protocol):
    """What a model keeps as `recorded` if it runs whole steps."""

    def decode_step(
        self, layer_groups: Sequence[int], kv_views: Sequence[torch.Tensor], *, groups: int, blocks: int, rows: int
    ) -> DecodeBuffers: ...


def is_plain_decode(chunk: ScheduledChunk) -> bool:
    """Whether a chunk is one token of which logits, and no more, are wanted."""
    request = chunk.request
    return chunk.num_tokens == 1 and chunk.samples and not request.embeds and not request.adapter


class DirectDecode:
    """Owner: the runner."""

    def __init__(
        self, model: WholeStep, layout: PageLayout, kv_views: Sequence[torch.Tensor], max_context_tokens: int
    ) -> None:
        self._model = model
        self._layout = layout
        self._kv_views = kv_views
        self._max_blocks = -(-max_context_tokens // layout.page_tokens)
        self._buffers: DecodeBuffers | None = None
        self._filled: list[tuple[int, int, int]] = []  # of each row: whose tables it holds, since when, and how far

    def run(self, chunks: list[ScheduledChunk]) -> tuple[torch.Tensor, list[int]] | None:
        """One step of one token a chunk: logits, which the next step overwrites, and each row's largest one's place.

        A place is -1 where the row is not finite. None: a token is not on the host yet.
        Shapes: logits [R, vocab] float32
        """
        count = len(chunks)
        starts = [chunk.start for chunk in chunks]
        tokens = [chunk.request.token_ids[chunk.start] for chunk in chunks]
        if PENDING in tokens:
            return None
        b = self._buffers
        if b is None or b.rows < count:
            b = self._grown(count)
        page_tokens = self._layout.page_tokens
        b.token_ids[:count] = tokens
        b.positions[:count] = starts
        b.write_offsets[:count] = [start % page_tokens for start in starts]
        b.context_lens[:count] = [start + 1 for start in starts]
        for row, chunk in enumerate(chunks):
            self._sync(row, chunk, b)
        b.run(count)
        return b.logits[:count], b.picked[:count].tolist()

    def _sync(self, row: int, chunk: ScheduledChunk, b: DecodeBuffers) -> None:
        """Bring the row's tables up to date, which they are but when its request got a page or is another one."""
        request = chunk.request
        blocks = chunk.start // self._layout.page_tokens + 1
        held = (request.order, request.preemptions, blocks)
        was = self._filled[row]
        if was == held:
            return
        self._filled[row] = held
        known = min(was[2], blocks - 1) if was[:2] == held[:2] else 0
        for group, table in enumerate(request.pages.tables):
            b.tables[group][row, known:blocks] = table[known:blocks]
            b.write_pages[group][row] = table[blocks - 1]

    def _grown(self, count: int) -> DecodeBuffers:
        rows = max(bucket_of(count), count)
        layout = self._layout
        self._buffers = self._model.decode_step(
            layout.layer_groups, self._kv_views, groups=len(layout.groups), blocks=self._max_blocks, rows=rows
        )
        self._filled = [(-1, 0, 0)] * rows
        return self._buffers
