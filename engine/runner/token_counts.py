"""TokenCounts: on the device, how often each request with a penalty has each token; kept up to date without the host.

A request's row is made when it first draws, from its prompt, and each token drawn since adds to it on the device, so
that a step need not wait for the tokens of the one before. Tokens that the host chose meanwhile are added first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from engine.devices import Device
from engine.kernels.reference_sampling import IN_PROMPT, ONE_OUTPUT
from engine.scheduler.request import Request

FIRST_ROWS = 8


@dataclass(slots=True)
class _Row:
    index: int
    counted: int  # of the request's tokens, prompt included


class TokenCounts:
    """Owner: the runner. `table` is [rows, vocab] int32, with no rows until a request needs one."""

    def __init__(self, device: Device, vocab_size: int) -> None:
        self._device = device
        self.table = torch.zeros(0, vocab_size, dtype=torch.int32, device=device.torch_device)
        self._rows: dict[str, _Row] = {}
        self._free: list[int] = []

    def release(self, request: Request) -> None:
        row = self._rows.pop(request.id, None)
        if row is not None:
            self._free.append(row.index)

    def row_of(self, request: Request) -> int:
        """The request's row, holding all of its tokens; one more is about to be drawn, which draw_tokens counts."""
        row = self._rows.get(request.id)
        if row is None:
            row = self._rows[request.id] = _Row(self._take(), request.num_prompt)
            mine = self.table[row.index]
            mine.zero_()
            mine.index_fill_(0, self._ids(request.token_ids[: request.num_prompt]), IN_PROMPT)  # without the host
        missing = request.token_ids[row.counted :]
        if missing:
            ones = torch.full((len(missing),), ONE_OUTPUT, dtype=torch.int32, device=self.table.device)
            self.table[row.index].index_add_(0, self._ids(missing), ones)
        row.counted = len(request.token_ids) + 1
        return row.index

    def _ids(self, token_ids: list[int]) -> torch.Tensor:
        return self._device.copy_to_device(np.array(token_ids, np.int32)).long()

    def _take(self) -> int:
        if not self._free:
            have = self.table.shape[0]
            more = max(FIRST_ROWS, have)
            self.table = torch.cat([self.table, self.table.new_zeros(more, self.table.shape[1])])
            self._free = list(range(have, have + more))[::-1]
        return self._free.pop()
