"""Activations as codes between two ops: a norm or a gate writes codes, and the product after it reads them.

Saves the pass over memory that rounding would be by itself. What is written is bit for bit what rounding the unfused
op's output gives. Used where the product takes codes for so many rows; see registry.CodedInput.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.kernels.registry import CodedInput
from engine.kernels.triton import fp4_native
from engine.kernels.triton.quant_linear import BLOCK_ROWS, EXACT_ROWS, PackedLinear, product_fp8
from engine.kernels.triton.quantise_rows import ADD_NORM, GELU, NORM, SILU, QuantRows, quantise_rows
from engine.kernels.triton.scaled_gemm import scaled_gemm

GATES = {"silu": SILU, "gelu_tanh": GELU}
MAX_WIDTH = 32768  # one program holds a row, of a gate two of them
FP8_GROUP = 128  # of weights in blocks


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """QuantRows with the type that the product is wanted in."""

    rows: QuantRows
    dtype: torch.dtype


Made = tuple[Rows, Tensor | None]  # the codes, and the new residual where there is one
Norm = Callable[[Tensor, Tensor | None, Tensor, float, PackedLinear], Made]
Gate = Callable[[Tensor, str, PackedLinear], Rows]


def wants_int8(count: int, packed: PackedLinear) -> bool:
    weight = packed.weight
    fits = packed.plain is None and weight.scales.shape[1] == 1 and weight.shape[1] <= MAX_WIDTH
    return count > EXACT_ROWS and fits


def wants_fp8(count: int, packed: PackedLinear) -> bool:
    weight = packed.weight
    in_blocks = weight.scales.shape[1] > 1
    fits = packed.plain is None and weight.group in (weight.shape[1], FP8_GROUP) and weight.shape[1] <= MAX_WIDTH
    return count > EXACT_ROWS and fits and (not in_blocks or count <= BLOCK_ROWS)


def wants_fp4(count: int, packed: PackedLinear) -> bool:
    return count >= fp4_native.NATIVE_ROWS and packed.plain is None and packed.weight.shape[1] <= MAX_WIDTH


def _norm(code: str) -> Norm:
    """A norm that writes codes; of the sum with a residual where there is one."""

    def made(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, packed: PackedLinear) -> Made:
        mode = NORM if residual is None else ADD_NORM
        group = _group(code, packed)
        found, total = quantise_rows(
            x, code, mode=mode, weight=weight, eps=eps, residual=residual, kept=packed.kept, group=group
        )
        return Rows(found, x.dtype), total

    return made


def _gate(code: str) -> Gate:
    def made(gate_up: Tensor, activation: str, packed: PackedLinear) -> Rows:
        mode, group = GATES[activation], _group(code, packed)
        found, _ = quantise_rows(gate_up, code, mode=mode, kept=packed.kept, group=group)
        return Rows(found, gate_up.dtype)

    return made


def _group(code: str, packed: PackedLinear) -> int:
    return FP8_GROUP if code == "fp8" and packed.weight.code == "fp8" and packed.weight.scales.shape[1] > 1 else 0


def run_int8(made: Rows, packed: PackedLinear, bias: Tensor | None) -> Tensor:
    rows, weight = made.rows, packed.weight
    kept = packed.beside if rows.outliers is not None else None
    return scaled_gemm(rows.codes, weight.codes, rows.scales, weight.scales, made.dtype, bias, rows.outliers, kept)


def run_fp8(made: Rows, packed: PackedLinear, bias: Tensor | None) -> Tensor:
    weight = packed.weight
    return product_fp8(made.rows, weight.codes.view(torch.float8_e4m3fn), weight.scales, made.dtype, bias)


def run_fp4(made: Rows, packed: PackedLinear, bias: Tensor | None) -> Tensor:
    return product_fp8(made.rows, *fp4_native.to_e4m3(packed.weight), made.dtype, bias)


INT8 = CodedInput(wants_int8, _norm("int8"), _gate("int8"), run_int8)
FP8 = CodedInput(wants_fp8, _norm("fp8"), _gate("fp8"), run_fp8)
FP4 = CodedInput(wants_fp4, _norm("fp8"), _gate("fp8"), run_fp4)
