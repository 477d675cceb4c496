"""Activations to eight bits, a multiplier a row, in the pass that makes them: norm, residual, or a gate's product.

A row's codes depend on that row alone. E4M3 has powers of two as multipliers: its numbers, of a floating point of their
own, are no less near so, and code times multiplier is a number of 16 bits, which kernels for few rows read as it is.
With outlier columns, those inputs are written beside in 16 bits, count as zero
in the codes, and a counter on the device says in how many rows a column that is not among them was one: nothing is
asked of the host, so a step can be captured and replayed. Where a number is not finite the multiplier is NaN.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from engine.kernels.outlier_misses import misses_of
from engine.kernels.triton.chained import chains, launch, let_next_start, wait_for_last
from engine.kernels.triton.device import converts_fp8
from engine.kernels.triton.fine_rows import CHUNK, FineForm, FineRows

PLAIN, NORM, ADD_NORM, SILU, GELU = 0, 1, 2, 3, 4
OUTLIER_THRESHOLD = 6.0  # of an activation's size
WHOLE_ROWS = 16  # of which a library wants whole ones


@dataclass(frozen=True, slots=True, eq=False)
class QuantRows:
    """Activations as codes. Shapes: codes [M, K], int8 or E4M3; scales [M, 1] or [M, G]; outliers [M, k padded]"""

    codes: torch.Tensor
    scales: torch.Tensor
    outliers: torch.Tensor | None = None
    whole: tuple[torch.Tensor, torch.Tensor] | None = None  # of groups: codes and scales with rows behind that mean
    # nothing, so that there are a multiple of WHOLE_ROWS


@dataclass(frozen=True, slots=True, eq=False)
class OutlierColumns:
    """The inputs of a projection that are kept in 16 bits, and how often others should have been.

    Shapes: columns [k padded] int32, -1 beyond count; is_outlier [K] uint8; misses [1] int32
    """

    columns: torch.Tensor
    is_outlier: torch.Tensor
    misses: torch.Tensor
    threshold: float = OUTLIER_THRESHOLD
    dtype: torch.dtype = torch.float16  # that the weights beside have


def outlier_columns(
    columns: torch.Tensor, depth: int, threshold: float = OUTLIER_THRESHOLD, dtype: torch.dtype = torch.float16
) -> OutlierColumns:
    """Shapes: columns [k] int, ascending"""
    device = columns.device
    room = padded_outliers(len(columns))
    padded = torch.full((room,), -1, dtype=torch.int32, device=device)
    padded[: len(columns)] = columns.to(torch.int32)
    marks = torch.zeros(depth, dtype=torch.uint8, device=device)
    marks[columns.to(torch.int64)] = 1
    return OutlierColumns(padded, marks, misses_of(device).counter(), threshold, dtype)


def padded_outliers(count: int) -> int:
    return max(16, 1 << (count - 1).bit_length())


@triton.jit
def e4m3_codes(values):
    """The nearest E4M3 of float32 numbers within its range, ties to even, as int32. For devices that cannot convert."""
    bits = values.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    normal = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - 960
    small = (tl.abs(values) * 512.0 + 12582912.0).to(tl.int32, bitcast=True) & 0xF
    code = tl.where(size < 0x3C800000, small, normal)  # below 2 ** -6 steps are even
    return code | ((bits >> 24) & 0x80)


@triton.jit
def largest_size(values, AXIS: tl.constexpr):
    """The largest absolute value of float32 numbers; NaN where one is, which a maximum of floats would pass over."""
    return tl.max(values.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=AXIS).to(tl.float32, bitcast=True)


@triton.jit
def _multiplier(largest, LIMIT: tl.constexpr, POWER: tl.constexpr):
    """With which numbers up to `largest` become codes up to LIMIT; NaN where one is not finite. POWER: of two"""
    scale = tl.maximum(largest, 1e-30) / LIMIT
    if POWER:
        scale = ((scale.to(tl.int32, bitcast=True) + 0x7FFFFF) & 0x7F800000).to(tl.float32, bitcast=True)
    return tl.where(largest < float("inf"), scale, float("nan"))


@triton.jit
def _quantise_kernel(
    x, residual, weight, codes, scales, residual_out, marks, columns, outliers, misses, width, group_stride, eps,
    threshold,
    MODE: tl.constexpr, WHOLE: tl.constexpr, NUM_OUTLIERS: tl.constexpr, BLOCK: tl.constexpr, TYPE: tl.constexpr,
    HARDWARE: tl.constexpr, GROUP: tl.constexpr, FINE: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """TYPE: of the values, as they would have been written without codes. FINE: as fine_rows.py has rows of bytes

    group_stride: from a group's scales to the next one's
    """
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, BLOCK)
    mask = lanes < width
    if CHAINED:
        let_next_start()
        wait_for_last()
    if MODE >= 3:
        gate = tl.load(x + row * 2 * width + lanes, mask=mask, other=0.0).to(tl.float32)
        up = tl.load(x + row * 2 * width + width + lanes, mask=mask, other=0.0).to(tl.float32)
        inner = gate
        if MODE == 4:
            inner = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
        values = gate * tl.sigmoid(inner) * up
    elif MODE == 2:
        total = tl.load(x + row * width + lanes, mask=mask, other=0.0)
        total += tl.load(residual + row * width + lanes, mask=mask, other=0.0)
        tl.store(residual_out + row * width + lanes, total, mask=mask)
        values = total.to(tl.float32)
    else:
        values = tl.load(x + row * width + lanes, mask=mask, other=0.0).to(tl.float32)
    factor = 1.0
    if MODE == 1 or MODE == 2:
        factor = tl.rsqrt(tl.sum(values * values, axis=0) / width + eps)
        values = values * factor * tl.load(weight + lanes, mask=mask, other=0.0).to(tl.float32)
    values = values.to(TYPE).to(tl.float32)
    if NUM_OUTLIERS > 0:
        kept = tl.load(marks + lanes, mask=mask, other=0) != 0
        slot = tl.arange(0, NUM_OUTLIERS)
        column = tl.load(columns + slot)
        exists = column >= 0
        column = tl.maximum(column, 0)
        if MODE >= 3:
            gate = tl.load(x + row * 2 * width + column, mask=exists, other=0.0).to(tl.float32)
            up = tl.load(x + row * 2 * width + width + column, mask=exists, other=0.0).to(tl.float32)
            inner = gate
            if MODE == 4:
                inner = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
            one = gate * tl.sigmoid(inner) * up
        else:
            if MODE == 2:
                both = tl.load(x + row * width + column, mask=exists, other=0.0)
                both += tl.load(residual + row * width + column, mask=exists, other=0.0)
                one = both.to(tl.float32)
            else:
                one = tl.load(x + row * width + column, mask=exists, other=0.0).to(tl.float32)
            if MODE == 1 or MODE == 2:
                one = one * factor * tl.load(weight + column, mask=exists, other=0.0).to(tl.float32)
        one = one.to(TYPE).to(tl.float32)
        held = tl.minimum(tl.maximum(one, -65504.0), 65504.0)  # what float16 holds
        one = tl.where(tl.abs(one) < float("inf"), held, one)
        tl.store(outliers + row * NUM_OUTLIERS + slot, one.to(outliers.dtype.element_ty))
        values = tl.where(kept, 0.0, values)
    LIMIT: tl.constexpr = 127.0 if WHOLE else 448.0
    if GROUP == 0:
        largest = largest_size(values, 0)
        if NUM_OUTLIERS > 0:
            tl.atomic_add(misses, 1, mask=largest > threshold, sem="relaxed")
        scale = _multiplier(largest, LIMIT, not WHOLE)
        if FINE:
            chunk = tl.arange(0, BLOCK // 32)
            alike = tl.zeros([BLOCK // 32], tl.float32) + scale
            tl.store(scales + row * (width // 32) + chunk, alike, mask=chunk < width // 32)
        else:
            tl.store(scales + row, scale)
        quotient = values / scale
    else:
        grouped = tl.reshape(values, [BLOCK // GROUP, GROUP])
        largest = largest_size(grouped, 1)
        scale = _multiplier(largest, LIMIT, not WHOLE)
        group = tl.arange(0, BLOCK // GROUP)
        tl.store(scales + row + group.to(tl.int64) * group_stride, scale, mask=group < width // GROUP)
        quotient = tl.reshape(grouped / scale[:, None], [BLOCK])
    if WHOLE:
        # Adding and taking away three halves of 2 ** 23 rounds to the nearest even whole number.
        quotient = (quotient + 12582912.0) - 12582912.0
    quotient = tl.minimum(tl.maximum(quotient, -LIMIT), LIMIT)
    place = lanes
    if FINE:
        place = ((lanes % 8 // 4) * (width // 8) + lanes // 8) * 4 + lanes % 4
        coded = quotient.to(tl.int16)
    elif WHOLE:
        coded = quotient.to(tl.int8).to(tl.uint8, bitcast=True)
    elif HARDWARE:
        coded = quotient.to(tl.float8e4nv).to(tl.uint8, bitcast=True)
    else:
        coded = e4m3_codes(quotient).to(tl.uint8)
    tl.store(codes + row * width + place, coded, mask=mask)


_TYPES = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}


def quantise_rows(
    x: torch.Tensor,
    code: str,
    *,
    mode: int = PLAIN,
    weight: torch.Tensor | None = None,
    eps: float = 0.0,
    residual: torch.Tensor | None = None,
    kept: OutlierColumns | None = None,
    group: int = 0,
) -> tuple[QuantRows, torch.Tensor | None]:
    """Codes of x, of its norm, of the norm of its sum with residual, or of a gate's product; and that sum.

    code: "int8" or "fp8". group: neighbours with a scale of their own, which divide K; 0: a row has one
    Shapes: x [M, K], of a gate [M, 2K]; weight [K]; residual [M, K] -> (codes of [M, K], new residual [M, K] | None)
    Mutates: kept.misses
    """
    count, width = x.shape[0], x.shape[1] // (2 if mode >= SILU else 1)
    room = -(-count // WHOLE_ROWS) * WHOLE_ROWS if group else count
    codes = torch.empty(room, width, dtype=torch.int8 if code == "int8" else torch.float8_e4m3fn, device=x.device)
    whole = None
    if group:  # all rows' scales of a group lie together, as products read them
        scales = torch.empty(width // group, room, dtype=torch.float32, device=x.device).T
        whole = codes, scales
        codes, scales = codes[:count], scales[:count]
    else:
        scales = torch.empty(count, 1, dtype=torch.float32, device=x.device)
    written = codes.view(torch.uint8)
    outliers, total = _quantise(x, written, scales, mode, weight, eps, residual, kept, group, whole=code == "int8")
    return QuantRows(codes, scales, outliers, whole), total


def fine_int8(
    x: torch.Tensor,
    *,
    mode: int = PLAIN,
    weight: torch.Tensor | None = None,
    eps: float = 0.0,
    residual: torch.Tensor | None = None,
) -> tuple[FineRows, torch.Tensor | None]:
    """The int8 codes and the multiplier of quantise_rows as what quant_dots reads with codes of bytes.

    Shapes: as quantise_rows, K a multiple of 32
    """
    count, width = x.shape[0], x.shape[1] // (2 if mode >= SILU else 1)
    assert width % CHUNK == 0, width
    codes = torch.empty(count, width, dtype=torch.int16, device=x.device)
    scales = torch.empty(count, width // CHUNK, dtype=torch.float32, device=x.device)
    _, total = _quantise(x, codes, scales, mode, weight, eps, residual, None, 0, whole=True, fine=True)
    return FineRows(codes, scales, scales.view(torch.int32), FineForm(8)), total  # sums: only zero points want them


def _quantise(
    x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, mode: int, weight: torch.Tensor | None, eps: float,
    residual: torch.Tensor | None, kept: OutlierColumns | None, group: int, *, whole: bool, fine: bool = False,
) -> tuple[torch.Tensor | None, torch.Tensor | None]:  # fmt: skip
    """-> (outliers | None, new residual | None). Mutates: codes, scales, kept.misses"""
    x = x.contiguous()
    count, width = codes.shape
    total = torch.empty_like(x) if mode == ADD_NORM else None
    outliers = None
    if kept is not None:
        outliers = torch.empty(count, kept.columns.shape[0], dtype=kept.dtype, device=x.device)
    if count:
        block = max(CHUNK, triton.next_power_of_2(width))
        _quantise_kernel[(count,)](
            x, x if residual is None else residual.contiguous(), x if weight is None else weight, codes, scales,
            x if total is None else total,
            x if kept is None else kept.is_outlier, x if kept is None else kept.columns,
            x if outliers is None else outliers, x if kept is None else kept.misses,
            width, scales.stride(1) if group else 1, eps, 0.0 if kept is None else kept.threshold,
            mode, whole, 0 if kept is None else kept.columns.shape[0], block, _TYPES[x.dtype],
            converts_fp8(x.device), group, fine, chains(x.device),
            num_warps=min(16, max(1, block // 512)), **launch(x.device),
        )  # fmt: skip
    return outliers, total
