"""ExpertStack: the matrices of a layer's experts under one another, all stored alike."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from engine.quant.coded_tensor import CodedTensor
from engine.quant.quant_tensor import QuantTensor


@dataclass(frozen=True, slots=True, eq=False)
class ExpertStack:
    """Shapes: weight [E * N, K], expert after expert"""

    weight: QuantTensor | CodedTensor | Tensor
    num_experts: int

    def __post_init__(self) -> None:
        assert self.weight.shape[0] % self.num_experts == 0, (self.weight.shape, self.num_experts)

    @property
    def rows(self) -> int:
        """N: rows of one expert"""
        return int(self.weight.shape[0]) // self.num_experts

    @property
    def columns(self) -> int:
        return int(self.weight.shape[1])

    def of(self, expert: int) -> QuantTensor | CodedTensor | Tensor:
        """One expert's matrix [N, K], a view."""
        rows = slice(expert * self.rows, (expert + 1) * self.rows)
        if isinstance(self.weight, Tensor):
            return self.weight[rows]
        if isinstance(self.weight, CodedTensor):
            return self.weight.take(rows)
        return QuantTensor(self.weight.kind, self.weight.data[rows], (self.rows, self.columns))
