"""The dense gated MLP."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from engine.layers.linear import Linear
from engine.layers.ops import Ops


@dataclass(frozen=True, slots=True)
class GatedMlp:
    ops: Ops
    gate_up: Linear  # the gate's columns first
    down: Linear

    def __call__(self, x: Tensor) -> Tensor:
        """Shapes: x [T, hidden] -> [T, hidden]"""
        return self.down(self.ops.silu_mul(self.gate_up(x)))
