"""How often an input was an outlier in a column that is not kept apart: counted on the device, asked for now and then.

Kernels add to a counter of their own at an address that never changes, so a step can be captured and replayed. The sum
is copied to the host behind the steps that are queued, and read when it has come: nobody waits.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

MAX_COUNTERS = 4096  # projections; what is beyond shares the last one


class OutlierMisses:
    """One a device. Owner: the device's one stream of steps."""

    def __init__(self, device: torch.device) -> None:
        self._counts = torch.zeros(MAX_COUNTERS, dtype=torch.int32, device=device)
        self._used = 0
        self._total = 0
        on_host = device.type == "cpu"
        self._arrived = torch.zeros(1, dtype=torch.int64, pin_memory=not on_host)
        self._mark: torch.Event | None = None
        self._device = device

    def counter(self) -> Tensor:
        """A counter of one projection's. Shapes: -> [1] int32"""
        self._used += 1
        at = min(self._used, MAX_COUNTERS) - 1
        return self._counts[at : at + 1]

    def total(self) -> int | None:
        """Rows with a miss, over all projections, as they were when last asked; None: nothing is counted here."""
        if not self._used:
            return None
        if self._device.type == "cpu":
            return int(self._counts.sum())
        if self._counts.untyped_storage().nbytes() == 0:  # with the weights in host memory, while a worker sleeps
            return self._total
        if self._mark is not None and self._mark.query():
            self._total, self._mark = int(self._arrived), None
        if self._mark is None:
            self._arrived.copy_(self._counts.sum(dtype=torch.int64), non_blocking=True)
            self._mark = torch.Event(self._device.type)
            self._mark.record()
        return self._total


def misses_of(device: torch.device) -> OutlierMisses:
    """Of a device; one without a number is the first."""
    return _of(device.type, device.index or 0)


@functools.cache
def _of(kind: str, index: int) -> OutlierMisses:
    return OutlierMisses(torch.device(kind, index))
