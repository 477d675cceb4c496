"""The linear op for quantised weights: which kernel takes how many rows.

Weight-only: codes times activations as they are. Where activations of eight bits are asked for, coded_rows.py rounds
them before.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.kernels import reference
from engine.kernels.triton import tile_rows
from engine.kernels.triton.coded import CodedWeight, coded
from engine.kernels.triton.few_rows import MAX_ROWS, few_rows
from engine.kernels.triton.quant_gemm import large_linear
from engine.kernels.triton.quantise_rows import OutlierColumns, QuantRows, outlier_columns, padded_outliers
from engine.kernels.triton.scaled_gemm import scaled_gemm
from engine.quant.coded_tensor import CodedTensor
from engine.quant.quant_tensor import QuantTensor

# A product of so few rows and columns leaves the library's tiles mostly idle: ours takes 60 % of its time.
SMALL_ROWS, SMALL_COLUMNS, TINY_ROWS = 128, 8192, 64


@dataclass(frozen=True, slots=True, eq=False)
class PackedLinear:
    """kept and beside: the outlier columns, and their weights [N, k padded] in 16 bits"""

    weight: CodedWeight
    kept: OutlierColumns | None = None
    beside: torch.Tensor | None = None
    plain: QuantTensor | CodedTensor | None = None  # a weight whose shape the kernels do not take, as it came


def pack(weight: torch.Tensor | QuantTensor | CodedTensor) -> PackedLinear:
    assert not isinstance(weight, torch.Tensor), "plain weights have kernels of their own"
    split = coded(weight) if takes(weight) else None
    if split is None:
        return PackedLinear(_NOTHING, plain=weight)
    if split.outlier_columns is None or split.outlier_weights is None:
        return PackedLinear(split)
    columns, stored = split.outlier_columns, split.outlier_weights
    kept = outlier_columns(columns, split.shape[1], split.outlier_threshold, stored.dtype)
    beside = torch.zeros(split.shape[0], padded_outliers(len(columns)), dtype=stored.dtype, device=stored.device)
    beside[:, : len(columns)] = stored
    return PackedLinear(split, kept, beside)


_NOTHING = CodedWeight("fp8", (0, 4), torch.empty(0, 4, dtype=torch.uint8), torch.empty(0, 1))


def takes(weight: QuantTensor | CodedTensor) -> bool:
    """Whether rows divide into what the kernels load at once."""
    half_bytes = weight.kind in ("int4", "fp4_nv", "fp4_mx")
    sizes = weight.shape[1] % (32 if half_bytes else 4) == 0
    return sizes and (isinstance(weight, QuantTensor) or weight.scales.shape[1] == 1 or weight.group % 16 == 0)


def linear(x: torch.Tensor, packed: PackedLinear, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Activations stay exact, but those of up to four rows for whole-number codes: in steps that fine_rows.py names.

    Shapes: x [M, K]; weight (N, K); bias [N] -> [M, N]
    """
    if packed.plain is not None:
        return reference.linear(x, packed.plain, bias)
    weight, rows = packed.weight, x.shape[0]
    if rows == 0:
        return torch.empty(0, weight.shape[0], dtype=x.dtype, device=x.device)
    if rows <= MAX_ROWS:
        out = few_rows(x, weight, bias)
    elif tile_rows.takes(weight, rows):
        out = tile_rows.tile_rows(x, weight, bias)
    else:
        out = large_linear(x, weight, bias)
    if packed.beside is not None and weight.outlier_columns is not None:
        out += x.index_select(1, weight.outlier_columns) @ packed.beside[:, : len(weight.outlier_columns)].T.to(x.dtype)
    return out


def product_fp8(
    rows: QuantRows, codes: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype, bias: torch.Tensor | None
) -> torch.Tensor:
    """E4M3 rows times an E4M3 weight, by the library where it does these shapes sooner than ours.

    Shapes: rows [M, K]; codes [N, K]; scales [N, 1], or of blocks as scaled_gemm has them; bias [N] -> [M, N] of dtype
    """
    columns, depth = codes.shape
    fits = codes.device.type == "cuda" and dtype == torch.bfloat16 and columns % 16 == 0 and depth % 16 == 0
    if scales.shape[1] == 1 and fits and not is_small(rows.codes.shape[0], columns):
        out: torch.Tensor = torch._scaled_mm(
            rows.codes, codes.T, rows.scales, scales.T, bias, out_dtype=dtype, use_fast_accum=True
        )
        return out
    return scaled_gemm(rows.codes, codes, rows.scales, scales, dtype, bias)


def is_small(rows: int, columns: int) -> bool:
    """Whether the library's tiles would be mostly idle."""
    return rows <= TINY_ROWS or (rows <= SMALL_ROWS and columns <= SMALL_COLUMNS)
