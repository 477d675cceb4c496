"""DeviceRates: how fast a device reads and computes, measured by `bayard calibrate` or shipped with Bayard.

Shipped figures are datasheet or typical values times a habitual efficiency, and every prediction made from them is
marked "shipped".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

MEASURED = "measured"
SHIPPED = "shipped"


@dataclass(frozen=True, slots=True)
class KindRate:
    """How one way of storing weights runs through the linear kernel of a device."""

    read_bytes_per_s: float  # one row at a time: stored bytes of the matrix per second
    flops: float  # many rows: multiply-adds times two per second


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

    def of_kind(self, kind: str) -> KindRate:
        """The rate of one weight kind; a kind that was not measured runs at the plain rates."""
        return self.kinds.get(kind, KindRate(self.read_bytes_per_s, self.flops))

    @property
    def kv_rate(self) -> float:
        return self.read_bytes_per_s if self.kv_read_bytes_per_s is None else self.kv_read_bytes_per_s

    def to_json(self) -> dict[str, Any]:
        built: dict[str, Any] = msgspec.to_builtins(self)
        return built

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> DeviceRates:
        return msgspec.convert(data, cls)
