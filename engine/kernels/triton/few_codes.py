"""Up to four rows as the whole numbers that quant_dots reads, written by the norm or the gate before."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.kernels.registry import CodedInput
from engine.kernels.triton import quant_dots
from engine.kernels.triton.few_rows import MAX_ROWS, of_fine
from engine.kernels.triton.fine_rows import FineRows
from engine.kernels.triton.quant_linear import PackedLinear


@dataclass(frozen=True, slots=True, eq=False)
class Fine:
    """FineRows with the type that the product is wanted in."""

    rows: FineRows
    dtype: torch.dtype


def wants(count: int, packed: PackedLinear) -> bool:
    whole = packed.plain is None and packed.beside is None  # columns kept beside want the rows themselves
    return 0 < count <= MAX_ROWS and whole and quant_dots.takes(packed.weight)


def norm(
    x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, packed: PackedLinear
) -> tuple[Fine, Tensor | None]:
    form = quant_dots.form(packed.weight)
    if residual is None:
        return Fine(form.rms_norm(x, weight, eps), x.dtype), None
    rows, total = form.add_rms_norm(x, residual, weight, eps)
    return Fine(rows, x.dtype), total


def gate(gate_up: Tensor, activation: str, packed: PackedLinear) -> Fine:
    return Fine(quant_dots.form(packed.weight).gate(gate_up, activation), gate_up.dtype)


def run(made: Fine, packed: PackedLinear, bias: Tensor | None) -> Tensor:
    return of_fine(made.rows, packed.weight, made.dtype, bias)


CODES = CodedInput(wants, norm, gate, run)
