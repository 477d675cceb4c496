"""DeviceRates: how fast a device reads and computes, measured by `bayard calibrate` or shipped with Bayard.

Shipped figures are datasheet or typical values times a habitual efficiency, and every prediction made from them is
marked "shipped".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import msgspec

MEASURED = "measured"
SHIPPED = "shipped"
_LIKE = {"int8_mixed": "int8", "F16": "BF16"}  # a kind that was not measured, and one that reads as it does


@dataclass(frozen=True, slots=True)
class KindRate:
    """How one way of storing weights runs through the linear kernel of a device."""

    read_bytes_per_s: float  # one row at a time: stored bytes of the matrix per second
    flops: float  # many rows: multiply-adds times two per second
    points: tuple[tuple[int, float], ...] = ()  # measured (rows, seconds per weight), rows rising; () for a roofline

    def seconds(self, size_bytes: float, elements: float, rows: float) -> float:
        """Time of matrices of so many stored bytes and weights over `rows` rows."""
        if not self.points:
            return max(size_bytes / self.read_bytes_per_s, 2.0 * elements * rows / self.flops)
        return elements * self._per_weight(rows)

    def _per_weight(self, rows: float) -> float:
        """Straight lines between what was measured; beyond it time grows with the rows."""
        points = self.points
        if rows <= points[0][0] or len(points) == 1:
            return points[0][1] if rows <= points[0][0] else points[0][1] * rows / points[0][0]
        for (low, low_s), (high, high_s) in pairwise(points):
            if rows <= high:
                return low_s + (high_s - low_s) * (rows - low) / (high - low)
        return points[-1][1] * rows / points[-1][0]


@dataclass(frozen=True, slots=True)
class LinkRates:
    """Bytes a second of large copies. peer: to the next device of its kind; None: there is none"""

    to_device: float
    to_host: float
    peer: float | None = None

    def __str__(self) -> str:
        told = f"{self.to_device / 1e9:.1f} GB/s from the host, {self.to_host / 1e9:.1f} back"
        return told if self.peer is None else f"{told}, {self.peer / 1e9:.1f} to its neighbour"


@dataclass(frozen=True, slots=True)
class DeviceRates:
    device: str
    name: str
    read_bytes_per_s: float  # streaming read of plain memory
    flops: float  # matrix product in the activations' precision, many rows
    attention_flops: float
    step_overhead_s: float  # per step: scheduling, sampling, messages
    layer_overhead_s: float  # per layer: launching its kernels
    kinds: dict[str, KindRate] = field(default_factory=dict)  # weight kind -> measured or known rate
    source: str = SHIPPED
    detail: str = ""
    kv_read_bytes_per_s: float | None = None  # None: as read_bytes_per_s
    links: LinkRates | None = None  # of an accelerator
    experts_overhead_s: float = 0.0  # per layer of experts: choosing them and putting their tokens in order

    def of_kind(self, kind: str) -> KindRate:
        """The rate of one weight kind; a kind that was not measured runs at the plain rates."""
        known = self.kinds.get(kind) or self.kinds.get(_LIKE.get(kind, ""))
        return known or KindRate(self.read_bytes_per_s, self.flops)

    @property
    def kv_rate(self) -> float:
        return self.read_bytes_per_s if self.kv_read_bytes_per_s is None else self.kv_read_bytes_per_s

    def to_json(self) -> dict[str, Any]:
        built: dict[str, Any] = msgspec.to_builtins(self)
        return built

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> DeviceRates:
        return msgspec.convert(data, cls)
