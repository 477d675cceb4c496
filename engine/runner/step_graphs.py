"""Small steps of several queries a sequence as replayed graphs: short prompts, a prompt's end beside decodes, guesses.

Launching a model's kernels one by one takes the host longer than a device needs for a few hundred rows. A graph has a
fixed number of sequences and of rows; which row is whose is an input. Rows that are left over belong to sequences of
their own, which read and write the null page. Graphs are captured in idle time only: until then such steps run eagerly.
Steps of more rows are captured where launching bounds them still, as with a model of many layers and small experts.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from engine.batch import ForwardBatch, GroupMeta
from engine.devices import Device
from engine.kv.layout import PageLayout
from engine.runner.faults import is_out_of_memory
from engine.runner.inputs import Ints, StepArrays
from engine.runner.warm_up import FEW_IDS
from engine.scheduler.request import PENDING

log = logging.getLogger("bayard.engine")

SEQUENCES = (2, 16, 64)  # of a graph, one of which at least is for rows left over
EXTRA_ROWS = (8, 24, 64, 128, 192, 256)  # of a graph, beyond one a sequence
MANY_ROWS = (384, 512, 768, 1024, 1536, 2048)  # the same, where the host takes longer than the device
ALL_ROWS = EXTRA_ROWS + MANY_ROWS
HOST_BOUND = 1.05  # a step may take so many times what launching it takes, to count as one the device waits for
MEMORY_LEFT = 1 << 30  # bytes that large graphs leave to steps that run eagerly
MOST_LOGITS = 96  # rows whose logits are wanted, or as many as there are sequences

Array = TypeVar("Array", Ints, torch.Tensor)
Step = Callable[[ForwardBatch, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True, order=True)
class StepSize:
    sequences: int
    rows: int

    @property
    def extra(self) -> int:
        """Rows beyond one a sequence."""
        return self.rows - self.sequences

    @property
    def logits(self) -> int:
        return min(self.rows, max(MOST_LOGITS, self.sequences))


SIZES = tuple(StepSize(count, count + extra) for count in SEQUENCES for extra in ALL_ROWS)


def size_for(tokens: int, sequences: int, logits: int) -> StepSize | None:
    """The smallest that such a step fits, with a sequence and a row or more left over. None: it is too large."""
    count = next((count for count in SEQUENCES if count > sequences), None)
    extra = next((extra for extra in ALL_ROWS if extra >= tokens - sequences), None)
    if count is None or extra is None:
        return None
    size = StepSize(count, count + extra)
    return size if logits <= size.logits else None


@dataclass(slots=True)
class _Captured:
    graph: object
    host: torch.Tensor  # pinned staging of all inputs
    device: torch.Tensor
    picked: torch.Tensor  # [size.logits] int32; the next replay overwrites it
    copied: Callable[[], None]  # waits until `host` has been read
    inputs: ForwardBatch  # keeps every tensor whose address the graph holds


class StepGraphs:
    """Owner: the runner. step leaves a batch's logits where the runner finds them; it gives the largest's places."""

    def __init__(
        self,
        step: Step,
        layout: PageLayout,
        kv_views: Sequence[torch.Tensor],
        device: Device,
        max_blocks: int,
        *,
        most_rows: int | None = None,
    ) -> None:
        """most_rows: of a step that can be recorded."""
        # Rows left over are one sequence, whose context is as long.
        within = max_blocks * layout.page_tokens
        self._most_rows = within if most_rows is None else min(within, most_rows)
        self._step = step
        self._layout = layout
        self._kv_views = kv_views
        self._device = device
        self._max_blocks = max_blocks
        self._captured: dict[StepSize, _Captured] = {}
        self._left_out: set[StepSize] = set()  # no memory to capture them, or nothing to gain
        self._memory: object = None

    def forget(self) -> None:
        """Addresses baked into the graphs have changed."""
        self._captured.clear()
        self._left_out.clear()
        self._memory = None

    def missing(self, max_running: int, max_tokens: int) -> StepSize | None:
        """The largest size that is not captured yet, of those that steps of so many requests and tokens can use."""
        most = next((count for count in SEQUENCES if count > max_running), SEQUENCES[-1])
        extra = next((extra for extra in ALL_ROWS if extra >= max_tokens - 1), ALL_ROWS[-1])
        for size in reversed(SIZES):
            useful = size.sequences <= most and size.extra <= extra and size.rows <= self._most_rows
            if useful and size not in self._captured and size not in self._left_out:
                return size
        return None

    def prepare(self, size: StepSize, pool: torch.Tensor, memory: object) -> None:
        """Capture a size if that gains anything. Blocks: while it is captured.

        memory: of graphs that are never replayed beside these
        """
        self._memory = self._memory or memory
        try:
            captured = self._capture(size, pool)
            if captured is None:
                self._left_out.add(size)
            else:
                self._captured[size] = captured
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            log.warning("graph_out_of_memory sequences=%d rows=%d %s", size.sequences, size.rows, error)
            self._left_out.add(size)
            self._device.release_unused()

    def captured(self, tokens: int, sequences: int, logits: int) -> StepSize | None:
        """The size such a step takes, if there is a graph of it."""
        size = size_for(tokens, sequences, logits)
        return size if size in self._captured else None

    def replay(self, size: StepSize, arrays: StepArrays, pool: torch.Tensor) -> torch.Tensor:
        """Queue one step; the places of the largest logits of its rows.

        arrays: with tables of all blocks that a sequence can have
        """
        captured = self._captured[size]
        captured.copied()  # the inputs of the last step of this size have left the staging buffer
        self._fill(size, captured.host.numpy(), arrays, pool)
        captured.device.copy_(captured.host, non_blocking=True)
        captured.copied = self._device.mark()
        self._device.replay_graph(captured.graph)
        return captured.picked[: len(arrays.logit_rows)]

    def _fill(self, size: StepSize, host: NDArray[np.int32], arrays: StepArrays, pool: torch.Tensor) -> None:
        tokens, sequences = len(arrays.token_ids), len(arrays.slots)
        spare = size.sequences - sequences
        left = size.rows - tokens - (spare - 1)  # rows of the last spare sequence; the others have one each
        owner = np.repeat(arrays.slots, np.diff(arrays.query_starts))
        parts = _Parts(size, host)
        for row, values in ((0, arrays.token_ids), (1, arrays.positions), (2, arrays.write_offsets)):
            parts.rows[row, :tokens] = values
            parts.rows[row, tokens:] = 0
        parts.rows[3, :tokens] = np.where(arrays.token_ids == PENDING, owner, pool.shape[0] - 1)
        parts.rows[3, tokens:] = pool.shape[0] - 1
        parts.starts[: sequences + 1] = arrays.query_starts
        parts.starts[sequences + 1 : size.sequences] = np.arange(tokens + 1, tokens + spare)
        parts.starts[size.sequences] = size.rows
        parts.lens[:sequences] = arrays.context_lens
        parts.lens[sequences:] = 1
        parts.lens[size.sequences - 1] = left
        parts.logits[: len(arrays.logit_rows)] = arrays.logit_rows
        parts.logits[len(arrays.logit_rows) :] = size.rows - 1
        for at, (table, pages) in enumerate(zip(arrays.tables, arrays.write_pages, strict=True)):
            own_pages, own_table = parts.group(at, self._max_blocks)
            own_pages[:tokens] = pages
            own_pages[tokens:] = 0
            own_table[:sequences] = table
            own_table[sequences:, : -(-left // self._layout.page_tokens)] = 0

    def _capture(self, size: StepSize, pool: torch.Tensor) -> _Captured | None:
        """None: a large size that eager steps compute as fast, or that leaves them too little memory"""
        count = _Parts.count(size, len(self._layout.groups), self._max_blocks)
        host = self._device.pinned_ints(count)
        nothing = np.zeros(0, np.int32)
        blank = StepArrays(
            token_ids=nothing,
            positions=nothing,
            slots=nothing,
            query_starts=np.zeros(1, np.int32),
            context_lens=nothing,
            logit_rows=nothing,
            tables=[np.zeros((0, self._max_blocks), np.int32) for _ in self._layout.groups],
            write_pages=[nothing for _ in self._layout.groups],
            write_offsets=nothing,
        )
        self._fill(size, host.numpy(), blank, pool)
        device = torch.zeros(count, dtype=torch.int32, device=self._device.torch_device)
        device.copy_(host)
        batch, slots = self._static_batch(size, device)
        token_ids = batch.token_ids

        def run() -> torch.Tensor:
            batch.token_ids = token_ids
            return self._step(batch, slots, pool)

        if size.extra in MANY_ROWS:
            token_ids.copy_(torch.arange(size.rows, device=token_ids.device) % FEW_IDS)  # experts share these
            if self._device.free_bytes() < MEMORY_LEFT or not self._is_host_bound(run):
                return None
        graph, picked, self._memory = self._device.capture_graph(run, self._memory)
        return _Captured(graph, host, device, picked, self._device.mark(), batch)

    def _is_host_bound(self, run: Callable[[], torch.Tensor]) -> bool:
        """Whether an eager step takes hardly longer than launching it."""
        run()  # kernels compile
        self._device.synchronize()
        began = time.perf_counter()
        run()
        launched_s = time.perf_counter() - began
        self._device.synchronize()
        return time.perf_counter() - began < HOST_BOUND * launched_s

    def _static_batch(self, size: StepSize, ints: torch.Tensor) -> tuple[ForwardBatch, torch.Tensor]:
        parts = _Parts(size, ints)
        groups = []
        for at in range(len(self._layout.groups)):
            pages, table = parts.group(at, self._max_blocks)
            groups.append(GroupMeta(table, pages, parts.rows[2]))
        batch = ForwardBatch(
            token_ids=parts.rows[0],
            positions=parts.rows[1],
            query_starts=parts.starts,
            context_lens=parts.lens,
            logit_rows=parts.logits,
            groups=groups,
            kv_views=self._kv_views,
            layer_groups=self._layout.layer_groups,
            max_query_tokens=size.rows,
            max_context_tokens=self._max_blocks * self._layout.page_tokens,
        )
        return batch, parts.rows[3]


class _Parts(Generic[Array]):
    """Views of one buffer of inputs: a row's numbers, a sequence's, and each group's pages."""

    def __init__(self, size: StepSize, ints: Array) -> None:
        self._size = size
        self._ints: Array = ints
        self.rows: Array = ints[: 4 * size.rows].reshape(4, size.rows)  # token ids, positions, write offsets, slots
        at = 4 * size.rows
        self.starts: Array = ints[at : at + size.sequences + 1]
        at += size.sequences + 1
        self.lens: Array = ints[at : at + size.sequences]
        at += size.sequences
        self.logits: Array = ints[at : at + size.logits]
        self._groups = at + size.logits

    def group(self, number: int, max_blocks: int) -> tuple[Array, Array]:
        """(write pages [rows], block table [sequences, max_blocks])"""
        size = self._size
        at = self._groups + number * (size.rows + size.sequences * max_blocks)
        table = self._ints[at + size.rows : at + size.rows + size.sequences * max_blocks]
        return self._ints[at : at + size.rows], table.reshape(size.sequences, max_blocks)

    @staticmethod
    def count(size: StepSize, groups: int, max_blocks: int) -> int:
        each = size.rows + size.sequences * max_blocks
        return 4 * size.rows + 2 * size.sequences + 1 + size.logits + groups * each
