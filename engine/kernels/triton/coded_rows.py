"""Products whose activations are rounded to eight bits: the same rounding of a row whatever stands beside it.

How it comes depends on how many rows there are, since kernels for few rows read other things than those for many:

    FINE      codes, or what they say, as the whole numbers that quant_dots reads
    NUMBERS   what E4M3 codes say, as numbers of the activations' type, for kernels that read such
    CODES     codes and multipliers, for eight-bit matrix units

A norm or a gate writes any of them itself where one projection alone reads it, which saves a pass over memory; what it
writes is bit for bit what rounding the unfused op's output gives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

import torch
from torch import Tensor

from engine.kernels.registry import CodedInput
from engine.kernels.triton import fp4_native, fp8_rows, library_blocks, quant_dots
from engine.kernels.triton.few_codes import Fine
from engine.kernels.triton.few_rows import MAX_ROWS, of_fine
from engine.kernels.triton.fine_rows import FineForm
from engine.kernels.triton.quant_linear import PackedLinear, linear, product_fp8
from engine.kernels.triton.quantise_rows import ADD_NORM, GELU, NORM, SILU, QuantRows, fine_int8, quantise_rows
from engine.kernels.triton.rounded_rows import rounded, rounded_gate, rounded_norm
from engine.kernels.triton.scaled_gemm import scaled_gemm

GATES = {"silu": SILU, "gelu_tanh": GELU}
MAX_WIDTH = 32768  # one program holds a row, of a gate two of them
FP8_GROUP = 128  # of weights in blocks
BLOCK_ROWS = 2048  # beyond, decoding a weight with multipliers of groups for the plain product takes less than its own


class Form(StrEnum):
    FINE = "fine"
    NUMBERS = "numbers"
    CODES = "codes"


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """QuantRows with the type that the product is wanted in."""

    rows: QuantRows
    dtype: torch.dtype


Made = Rows | Fine | Tensor
Takes = Callable[[PackedLinear], bool]
FormOf = Callable[[int, PackedLinear], Form]


def takes_int8(packed: PackedLinear) -> bool:
    weight = packed.weight
    return packed.plain is None and weight.scales.shape[1] == 1 and weight.zeros is None


def form_int8(count: int, packed: PackedLinear) -> Form:
    fine = count <= MAX_ROWS and packed.beside is None and quant_dots.takes(packed.weight)
    return Form.FINE if fine else Form.CODES


def takes_fp8(packed: PackedLinear) -> bool:
    weight = packed.weight
    return packed.plain is None and weight.group in (weight.shape[1], FP8_GROUP)


def form_fp8(count: int, packed: PackedLinear) -> Form:
    in_groups = packed.weight.scales.shape[1] > 1
    decodes = in_groups and count > BLOCK_ROWS and not library_blocks.fits(packed.weight)
    numbers = count <= fp8_rows.MAX_ROWS or decodes
    return Form.NUMBERS if numbers else Form.CODES


def takes_fp4(packed: PackedLinear) -> bool:
    return packed.plain is None and fp4_native.takes(packed.weight)


def form_fp4(count: int, packed: PackedLinear) -> Form:
    if count <= MAX_ROWS and quant_dots.takes(packed.weight):
        return Form.FINE
    return Form.NUMBERS if count < fp4_native.NATIVE_ROWS else Form.CODES


@dataclass(frozen=True, slots=True)
class EightBits:
    """Rows of one code for one kind of weight. code: "int8" or "fp8"."""

    code: str
    takes: Takes  # which weights; others have exact activations at any number of rows
    form: FormOf

    def wants(self, count: int, packed: PackedLinear) -> bool:
        return count > 0 and self.takes(packed) and packed.weight.shape[1] <= MAX_WIDTH

    def rows(self, x: Tensor, packed: PackedLinear) -> Made:
        form = self.form(x.shape[0], packed)
        if form is Form.NUMBERS:
            return rounded(x)
        if form is Form.FINE:
            return Fine(fine_int8(x)[0] if self.code == "int8" else _fine_fp8(packed).rows(x), x.dtype)
        return Rows(quantise_rows(x, self.code, kept=packed.kept, group=_group(packed))[0], x.dtype)

    def norm(
        self, x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, packed: PackedLinear
    ) -> tuple[Made, Tensor | None]:
        """Of the sum with a residual where there is one, and that sum."""
        form, mode = self.form(x.shape[0], packed), NORM if residual is None else ADD_NORM
        if form is Form.NUMBERS:
            return rounded_norm(x, residual, weight, eps)
        if form is Form.FINE and self.code == "int8":
            fine, total = fine_int8(x, mode=mode, weight=weight, eps=eps, residual=residual)
            return Fine(fine, x.dtype), total
        if form is Form.FINE and residual is None:
            return Fine(_fine_fp8(packed).rms_norm(x, weight, eps), x.dtype), None
        if form is Form.FINE:
            assert residual is not None
            fine, total = _fine_fp8(packed).add_rms_norm(x, residual, weight, eps)
            return Fine(fine, x.dtype), total
        found, total = quantise_rows(
            x, self.code, mode=mode, weight=weight, eps=eps, residual=residual, kept=packed.kept, group=_group(packed)
        )
        return Rows(found, x.dtype), total

    def gate(self, gate_up: Tensor, activation: str, packed: PackedLinear) -> Made:
        form, mode = self.form(gate_up.shape[0], packed), GATES[activation]
        if form is Form.NUMBERS:
            return rounded_gate(gate_up, activation)
        if form is Form.FINE and self.code == "int8":
            return Fine(fine_int8(gate_up, mode=mode)[0], gate_up.dtype)
        if form is Form.FINE:
            return Fine(_fine_fp8(packed).gate(gate_up, activation), gate_up.dtype)
        found, _ = quantise_rows(gate_up, self.code, mode=mode, kept=packed.kept, group=_group(packed))
        return Rows(found, gate_up.dtype)

    def run(self, made: Made, packed: PackedLinear, bias: Tensor | None) -> Tensor:
        weight = packed.weight
        if isinstance(made, Tensor):
            return linear(made, packed, bias)
        if isinstance(made, Fine):
            return of_fine(made.rows, weight, made.dtype, bias)
        rows = made.rows
        if weight.code == "fp4":
            return product_fp8(rows, *fp4_native.to_e4m3(weight), made.dtype, bias)
        if library_blocks.fits(weight) and rows.codes.shape[0] >= library_blocks.FROM_ROWS:
            return library_blocks.product(rows, weight, made.dtype, bias)
        if weight.code == "fp8":
            return product_fp8(rows, weight.codes.view(torch.float8_e4m3fn), weight.scales, made.dtype, bias)
        kept = packed.beside if rows.outliers is not None else None
        return scaled_gemm(rows.codes, weight.codes, rows.scales, weight.scales, made.dtype, bias, rows.outliers, kept)

    def linear(self, x: Tensor, packed: PackedLinear, bias: Tensor | None = None) -> Tensor:
        """Shapes: x [M, K]; weight (N, K); bias [N] -> [M, N]"""
        if x.shape[0] == 0 or not self.takes(packed):
            return linear(x, packed, bias)
        return self.run(self.rows(x, packed), packed, bias)

    def input(self) -> CodedInput:
        return CodedInput(self.wants, self.norm, self.gate, self.run)


def _fine_fp8(packed: PackedLinear) -> FineForm:
    return replace(quant_dots.form(packed.weight), rounded=True)


def _group(packed: PackedLinear) -> int:
    return FP8_GROUP if packed.weight.code == "fp8" and packed.weight.scales.shape[1] > 1 else 0


_INT8 = EightBits("int8", takes_int8, form_int8)
_FP8 = EightBits("fp8", takes_fp8, form_fp8)
_FP4 = EightBits("fp8", takes_fp4, form_fp4)
INT8, FP8, FP4 = _INT8.input(), _FP8.input(), _FP4.input()
linear_int8, linear_fp8, linear_fp4 = _INT8.linear, _FP8.linear, _FP4.linear
