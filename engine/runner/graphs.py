"""Decode steps as replayed device graphs, at bucketed batch sizes.

Sizes are captured in idle time, the largest first since the later ones fit the memory it took, and at the latest when
a batch needs them. Rows that pad a batch read and write the null page and the pool's spare place. Inputs go through one
pinned buffer and one copy.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from engine.batch import ForwardBatch, GroupMeta
from engine.devices import Device
from engine.kv.layout import PageLayout
from engine.runner.faults import is_out_of_memory
from engine.runner.inputs import Ints, StepArrays

log = logging.getLogger("bayard.engine")

BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512)
SMALL_ROWS = 5  # token ids, positions, context lengths, slots, write offsets
ADAPTER_ROW = SMALL_ROWS  # one more where rows may have adapters

Step = Callable[[ForwardBatch, torch.Tensor, torch.Tensor], torch.Tensor]


def bucket_of(batch: int) -> int:
    """The size whose graph a batch takes; of a larger batch, the largest."""
    return next((size for size in BUCKETS if size >= batch), BUCKETS[-1])


@dataclass(slots=True)
class _Captured:
    graph: object
    host: torch.Tensor  # pinned staging of all inputs
    device: torch.Tensor
    picked: torch.Tensor  # [bucket] int32; the next replay overwrites it
    copied: Callable[[], None]  # waits until `host` has been read
    inputs: ForwardBatch  # keeps every tensor whose address the graph holds


class DecodeGraphs:
    def __init__(
        self,
        step: Step,
        layout: PageLayout,
        kv_views: Sequence[torch.Tensor],
        device: Device,
        max_blocks: int,
        *,
        adapted: bool = False,
    ) -> None:
        """adapted: rows may have adapters, whose numbers are then an input as well."""
        self._adapted = adapted
        self._small_rows = SMALL_ROWS + adapted
        self._step = step
        self._layout = layout
        self._kv_views = kv_views
        self._device = device
        self._max_blocks = max_blocks
        self._captured: dict[int, _Captured] = {}
        self._too_large: set[int] = set()  # sizes that there was no memory to capture; such batches run eagerly
        self.memory: object = None  # what all of them share

    def takes(self, batch: int) -> bool:
        return batch <= BUCKETS[-1]

    def forget(self) -> None:
        """Addresses baked into the graphs have changed: capture again when needed."""
        self._captured.clear()
        self._too_large.clear()
        self.memory = None  # it went with the last graph

    def missing(self, max_batch: int) -> int | None:
        """The largest size up to the one that max_batch needs which is not captured yet."""
        last = bucket_of(max_batch)
        known = self._captured.keys() | self._too_large
        return next((size for size in reversed(BUCKETS) if size <= last and size not in known), None)

    def prepare(self, bucket: int, pool: torch.Tensor) -> None:
        """Capture a size before it is needed. Blocks: while it is captured."""
        self._held(bucket, pool)

    def replay(self, arrays: StepArrays, pool: torch.Tensor, adapters: Ints | None = None) -> torch.Tensor | None:
        """Queue one step; the tokens picked for its rows. Blocks: while a new size is captured.

        None: there is no memory to capture this size, and nothing was queued
        adapters: the rows' adapters, where this is adapted
        """
        count = len(arrays.slots)
        bucket = bucket_of(count)
        captured = self._held(bucket, pool)
        if captured is None:
            return None
        captured.copied()  # the inputs of the last step of this size have left the staging buffer
        self._fill(captured.host.numpy(), arrays, bucket, pool, adapters)
        captured.device.copy_(captured.host, non_blocking=True)
        captured.copied = self._device.mark()
        self._device.replay_graph(captured.graph)
        return captured.picked[:count]

    def _held(self, bucket: int, pool: torch.Tensor) -> _Captured | None:
        """A size's graph, captured now if it is missing; None where memory is short."""
        if bucket not in self._captured and bucket not in self._too_large:
            try:
                self._captured[bucket] = self._capture(bucket, pool)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                log.warning("graph_out_of_memory rows=%d %s", bucket, error)
                self._too_large.add(bucket)
                self._device.release_unused()
        return self._captured.get(bucket)

    def _fill(
        self, host: NDArray[np.int32], arrays: StepArrays, bucket: int, pool: torch.Tensor, adapters: Ints | None
    ) -> None:
        count = len(arrays.slots)
        small = host[: self._small_rows * bucket].reshape(self._small_rows, bucket)
        small[:, count:] = 0
        small[0, :count] = arrays.token_ids
        small[1, :count] = arrays.positions
        small[2, :count] = arrays.context_lens
        small[2, count:] = 1
        small[3, :count] = arrays.slots
        small[3, count:] = pool.shape[0] - 1
        small[4, :count] = arrays.write_offsets
        if self._adapted:
            assert adapters is not None
            small[ADAPTER_ROW, :count] = adapters
            small[ADAPTER_ROW, count:] = -1
        at = self._small_rows * bucket
        for table, pages in zip(arrays.tables, arrays.write_pages, strict=True):
            host[at : at + count] = pages
            host[at + count : at + bucket] = 0
            at += bucket
            rows = host[at : at + bucket * self._max_blocks].reshape(bucket, self._max_blocks)
            rows[:count] = table
            rows[count:, 0] = 0
            at += bucket * self._max_blocks

    def _capture(self, bucket: int, pool: torch.Tensor) -> _Captured:
        groups = len(self._layout.groups)
        size = self._small_rows * bucket + groups * bucket * (1 + self._max_blocks)
        host = self._device.pinned_ints(size)
        device = torch.zeros(size, dtype=torch.int32, device=self._device.torch_device)
        batch, slots = self._static_batch(device, bucket)
        # Rows of a warm-up run write to the null page and the spare place, as padding does.
        device[2 * bucket : 3 * bucket] = 1
        device[3 * bucket : 4 * bucket] = pool.shape[0] - 1
        token_ids = batch.token_ids

        def run() -> torch.Tensor:
            batch.token_ids = token_ids
            return self._step(batch, slots, pool)

        graph, picked, self.memory = self._device.capture_graph(run, self.memory)
        return _Captured(graph, host, device, picked, self._device.mark(), batch)

    def _static_batch(self, ints: torch.Tensor, bucket: int) -> tuple[ForwardBatch, torch.Tensor]:
        small = ints[: self._small_rows * bucket].view(self._small_rows, bucket)
        at = self._small_rows * bucket
        groups = []
        for _ in self._layout.groups:
            pages = ints[at : at + bucket]
            at += bucket
            table = ints[at : at + bucket * self._max_blocks].view(bucket, self._max_blocks)
            at += bucket * self._max_blocks
            groups.append(GroupMeta(table, pages, small[4]))
        rows = torch.arange(bucket + 1, dtype=torch.int32, device=ints.device)
        batch = ForwardBatch(
            token_ids=small[0],
            positions=small[1],
            query_starts=rows,
            context_lens=small[2],
            logit_rows=rows[:-1],
            groups=groups,
            kv_views=self._kv_views,
            layer_groups=self._layout.layer_groups,
            max_query_tokens=1,
            max_context_tokens=self._max_blocks * self._layout.page_tokens,
            adapters=small[ADAPTER_ROW] if self._adapted else None,
        )
        return batch, small[3]
