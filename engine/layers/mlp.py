"""The dense gated MLP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from engine.layers.coded_input import gate_into
from engine.layers.linear import CodedRows, Linear


@dataclass(frozen=True, slots=True)
class GatedMlp:
    gate: Callable[[Tensor], Tensor]  # the gate's function of one half times the other
    gate_up: Linear  # the gate's columns first
    down: Linear
    activation: str  # the gate's function by name

    @property
    def entry(self) -> Linear:
        """What alone reads the input."""
        return self.gate_up

    def __call__(self, x: Tensor | CodedRows) -> Tensor:
        """Shapes: x [T, hidden] -> [T, hidden]"""
        return self.down(gate_into(self.gate, self.activation, self.down, self.gate_up(x)))
