"""The dense gated MLP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from engine.layers.linear import Linear


@dataclass(frozen=True, slots=True)
class GatedMlp:
    gate: Callable[[Tensor], Tensor]  # the gate's function of one half times the other
    gate_up: Linear  # the gate's columns first
    down: Linear

    def __call__(self, x: Tensor) -> Tensor:
        """Shapes: x [T, hidden] -> [T, hidden]"""
        return self.down(self.gate(self.gate_up(x)))
