"""DecodeStep: decode steps of a program, one token a sequence, over buffers that are kept from step to step.

The caller writes the first `count` places of the arrays and calls run(count): no tensor is made, no struct is filled.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.kernels.cpu import abi
from engine.kernels.cpu.library import check, load
from engine.kernels.cpu.program import Program


class DecodeStep:
    """Not re-entrant. Owner: the model whose program it runs.

    Shapes, for up to `rows` sequences: token_ids, positions, write_offsets [rows] int64; context_lens [rows] int32;
    for each group write_pages [rows] int64, tables [rows, blocks] int32; results: logits [rows, vocab] float32,
    picked [rows] int64, each row's largest logit or -1 where the row is not finite
    """

    def __init__(
        self, program: Program, kv_views: Sequence[Tensor], *, groups: int, blocks: int, vocab: int, rows: int
    ) -> None:
        self.rows = rows
        self.token_ids = np.zeros(rows, np.int64)
        self.positions = np.zeros(rows, np.int64)
        self.write_offsets = np.zeros(rows, np.int64)
        self.context_lens = np.zeros(rows, np.int32)
        self.write_pages: list[NDArray[np.int64]] = [np.zeros(rows, np.int64) for _ in range(groups)]
        self.tables: list[NDArray[np.int32]] = [np.zeros((rows, blocks), np.int32) for _ in range(groups)]
        self.logits = torch.empty(rows, vocab)
        self.picked = np.zeros(rows, np.int64)
        self._starts = np.arange(rows + 1, dtype=np.int32)
        self._logit_rows = np.arange(rows, dtype=np.int64)
        self._program = program
        self._kv = program.kv_structs(kv_views)
        self._groups = (abi.Group * groups)(
            *[
                abi.Group(table.ctypes.data, blocks, blocks, pages.ctypes.data, self.write_offsets.ctypes.data)
                for table, pages in zip(self.tables, self.write_pages, strict=True)
            ]
        )
        self._step = abi.Step(
            token_ids=self.token_ids.ctypes.data,
            positions=self.positions.ctypes.data,
            query_starts=self._starts.ctypes.data,
            context_lens=self.context_lens.ctypes.data,
            logit_rows=self._logit_rows.ctypes.data,
            groups=self._groups,
            kv=self._kv,
            num_groups=groups,
            num_kv=len(self._kv),
            logits=self.logits.data_ptr(),
            logits_stride=vocab,
            argmax=self.picked.ctypes.data,
        )
        self._address = ctypes.byref(self._step)

    def run(self, count: int) -> None:
        """Mutates: logits, picked, the KV pages of the new tokens. Blocks: until done, without the GIL"""
        step = self._step
        step.tokens = step.sequences = step.logit_count = count
        check(load().bayard_program_run(self._program.handle, self._address), f"a decode step of {count} sequences")
