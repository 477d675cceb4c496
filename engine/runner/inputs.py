"""The arrays of a step, built on the host from its chunks and a persistent copy of the block tables.

Each running request has a slot: a row of the host's block tables, kept up to date page by page, and a place in the
device's pool of last tokens, so that a step can be launched before the one before it has been read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from engine.kv.layout import PageLayout
from engine.scheduler.chunk import ScheduledChunk
from engine.scheduler.request import Request

Ints = NDArray[np.int32]


@dataclass(slots=True)
class StepArrays:
    """Host arrays of one step: S sequences, T tokens."""

    token_ids: Ints  # [T]; PENDING where the token is only in the device's pool
    positions: Ints  # [T]
    slots: Ints  # [S]
    query_starts: Ints  # [S + 1]
    context_lens: Ints  # [S]
    logit_rows: Ints  # [R]
    tables: list[Ints]  # one a group [S, blocks]
    write_pages: list[Ints]  # one a group [T]
    write_offsets: Ints  # [T]


@dataclass(slots=True)
class _Slot:
    index: int
    preemptions: int
    synced: list[int] = field(default_factory=list)  # blocks of each group already in the host table


class SlotTables:
    """Owner of the slots and of the host's block tables."""

    def __init__(self, layout: PageLayout, max_context_tokens: int, rows: int = 64) -> None:
        self.layout = layout
        self.max_blocks = -(-max_context_tokens // layout.page_tokens)
        self._tables = [np.zeros((rows, self.max_blocks), dtype=np.int32) for _ in layout.groups]
        self._slots: dict[str, _Slot] = {}
        self._free = list(range(rows))[::-1]

    @property
    def num_rows(self) -> int:
        return int(self._tables[0].shape[0])

    def release(self, request: Request) -> None:
        """The request has ended; its slot is anyone's."""
        slot = self._slots.pop(request.id, None)
        if slot is not None:
            self._free.append(slot.index)

    def sync(self, request: Request) -> int:
        """Bring the request's row up to date with its pages and return its slot."""
        slot = self._slots.get(request.id)
        if slot is None:
            if not self._free:
                self._double()
            slot = _Slot(self._free.pop(), request.preemptions, [0] * len(self._tables))
            self._slots[request.id] = slot
        elif slot.preemptions != request.preemptions:
            slot.preemptions = request.preemptions
            slot.synced = [0] * len(self._tables)
        for group, pages in enumerate(request.pages.tables):
            known = slot.synced[group]
            if known < len(pages):
                self._tables[group][slot.index, known : len(pages)] = pages[known:]
                slot.synced[group] = len(pages)
        return slot.index

    def rows_of(self, group: int, slots: Ints, blocks: int) -> Ints:
        """Shapes: slots [S] -> [S, blocks]"""
        rows: Ints = self._tables[group][slots, :blocks]
        return rows

    def _double(self) -> None:
        rows = self.num_rows
        self._tables = [np.concatenate([table, np.zeros_like(table)]) for table in self._tables]
        self._free.extend(range(rows, 2 * rows)[::-1])


def build_arrays(chunks: Sequence[ScheduledChunk], tables: SlotTables, *, blocks: int | None = None) -> StepArrays:
    """One row a token, chunk after chunk; logits are wanted for the last row of chunks that sample.

    blocks: columns of the tables; None: as many as the longest sequence has
    """
    page_tokens = tables.layout.page_tokens
    count = len(chunks)
    slots = np.fromiter((tables.sync(chunk.request) for chunk in chunks), np.int32, count)
    starts = np.fromiter((chunk.start for chunk in chunks), np.int32, count)
    lengths = np.fromiter((chunk.num_tokens for chunk in chunks), np.int32, count)
    samples = np.fromiter((chunk.samples for chunk in chunks), np.bool_, count)
    query_starts = np.zeros(count + 1, np.int32)
    np.cumsum(lengths, out=query_starts[1:])
    context_lens = starts + lengths
    if int(query_starts[-1]) == count:  # decodes alone
        token_ids = np.fromiter((chunk.request.token_ids[chunk.start] for chunk in chunks), np.int32, count)
        positions = starts
        owner = np.arange(count, dtype=np.int32)
    else:
        flat: list[int] = []
        for chunk in chunks:
            flat += chunk.tokens()
        token_ids = np.array(flat, np.int32)
        owner = np.repeat(np.arange(count, dtype=np.int32), lengths)
        positions = np.arange(len(flat), dtype=np.int32) - query_starts[:-1][owner] + starts[owner]
    width = blocks if blocks is not None else -(-int(context_lens.max()) // page_tokens)
    group_tables = [tables.rows_of(group, slots, width) for group in range(len(tables.layout.groups))]
    block = positions // page_tokens
    return StepArrays(
        token_ids=token_ids,
        positions=positions,
        slots=slots,
        query_starts=query_starts,
        context_lens=context_lens,
        logit_rows=_logit_rows(chunks, query_starts, samples),
        tables=group_tables,
        write_pages=[table[owner, block] for table in group_tables],
        write_offsets=positions % page_tokens,
    )


def _logit_rows(chunks: Sequence[ScheduledChunk], query_starts: Ints, samples: NDArray[np.bool_]) -> Ints:
    """The last row of each chunk that samples; of a draft, the rows of its guesses too."""
    last: Ints = query_starts[1:] - 1
    if not any(chunk.draft for chunk in chunks):
        rows: Ints = last[samples]
        return rows
    wanted = [range(end - len(c.draft), end + 1) for c, end in zip(chunks, last.tolist(), strict=True) if c.samples]
    return np.array([row for rows in wanted for row in rows], np.int32)
