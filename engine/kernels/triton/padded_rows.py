"""Inputs of wide products with rows of zeros behind, written so by the norm before: no copy makes room for them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from engine.kernels.registry import CodedInput
from engine.kernels.triton.gemv import PAD_ROWS, pads
from engine.kernels.triton.norms import add_rms_norm, gelu_mul, rms_norm, silu_mul


@dataclass(frozen=True, slots=True, eq=False)
class PaddedRows:
    """Shapes: numbers [M rounded up to PAD_ROWS, K]"""

    numbers: torch.Tensor
    rows: int  # M

    @property
    def own(self) -> torch.Tensor:
        """Without the zeros. Shapes: [M, K]"""
        return self.numbers[: self.rows]


def _to_be_filled(like: torch.Tensor, width: int) -> PaddedRows:
    """As many rows as like, of that width, with the zeros behind them there."""
    rows = like.shape[0]
    numbers = like.new_empty(rows + -rows % PAD_ROWS, width)
    numbers[rows:].zero_()
    return PaddedRows(numbers, rows)


def norm(
    x: torch.Tensor, residual: torch.Tensor | None, scale: torch.Tensor, eps: float, weight: torch.Tensor
) -> tuple[PaddedRows, torch.Tensor | None]:
    """Of the sum with a residual where there is one, and that sum. Shapes: x, residual [M, K]; scale [K]"""
    made = _to_be_filled(x, x.shape[1])
    total = None
    if residual is None:
        rms_norm(x, scale, eps, made.own)
    else:
        _, total = add_rms_norm(x, residual, scale, eps, made.own)
    return made, total


def gate(gate_up: torch.Tensor, activation: str, weight: torch.Tensor) -> PaddedRows:
    """Shapes: gate_up [M, 2K]"""
    made = _to_be_filled(gate_up, gate_up.shape[1] // 2)
    (silu_mul if activation == "silu" else gelu_mul)(gate_up, made.own)
    return made


def run(made: PaddedRows, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Shapes: weight [N, K] -> [M, N]"""
    return F.linear(made.numbers, weight, bias)[: made.rows]


PADDED = CodedInput(pads, norm, gate, run)
