"""Up to four rows as the whole numbers that quant_dots reads, written by the norm or the gate before.

Beyond so many rows each of these does as the CodedInput of coded_rows.py that it stands for.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.kernels.registry import CodedInput
from engine.kernels.triton import coded_rows, quant_dots
from engine.kernels.triton.few_rows import MAX_ROWS, of_fine
from engine.kernels.triton.fine_rows import FineRows
from engine.kernels.triton.quant_linear import PackedLinear


@dataclass(frozen=True, slots=True, eq=False)
class Fine:
    """FineRows with the type that the product is wanted in."""

    rows: FineRows
    dtype: torch.dtype


def _is_fine(count: int, packed: PackedLinear) -> bool:
    whole = packed.plain is None and packed.beside is None  # columns kept beside want the rows themselves
    return 0 < count <= MAX_ROWS and whole and quant_dots.takes(packed.weight)


def with_few(many: CodedInput | None) -> CodedInput:
    """many: what serves more rows; None: they come as numbers"""

    def wants(count: int, packed: PackedLinear) -> bool:
        return _is_fine(count, packed) or (many is not None and bool(many.wants(count, packed)))

    def norm(
        x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, packed: PackedLinear
    ) -> tuple[object, Tensor | None]:
        if many is not None and not _is_fine(x.shape[0], packed):
            return many.norm(x, residual, weight, eps, packed)
        form = quant_dots.form(packed.weight)
        if residual is None:
            return Fine(form.rms_norm(x, weight, eps), x.dtype), None
        rows, total = form.add_rms_norm(x, residual, weight, eps)
        return Fine(rows, x.dtype), total

    def gate(gate_up: Tensor, activation: str, packed: PackedLinear) -> object:
        if many is not None and not _is_fine(gate_up.shape[0], packed):
            return many.gate(gate_up, activation, packed)
        return Fine(quant_dots.form(packed.weight).gate(gate_up, activation), gate_up.dtype)

    def run(made: object, packed: PackedLinear, bias: Tensor | None) -> Tensor:
        if isinstance(made, Fine):
            return of_fine(made.rows, packed.weight, made.dtype, bias)
        assert many is not None
        out: Tensor = many.run(made, packed, bias)
        return out

    return CodedInput(wants, norm, gate, run)


CODES = with_few(None)
INT8 = with_few(coded_rows.INT8)
FP8 = with_few(coded_rows.FP8)
FP4 = with_few(coded_rows.FP4)
