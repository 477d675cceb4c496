"""A quantised weight decoded once for many rows: to scratch, which the matrix library multiplies."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.kernels.triton.coded import CodedWeight
from engine.kernels.triton.decode import CODE_NUMBERS, SCALE_NUMBERS, _scale
from engine.kernels.triton.device import converts_fp8

SCRATCH_BYTES = 256 << 20  # of decoded numbers: a layer's largest matrix; smaller parts cost 10 %


@triton.jit
def _numbers(codes, CODE: tl.constexpr, HALF: tl.constexpr, HARDWARE: tl.constexpr):
    """Codes in bytes, or in a half of them, as float32 before zero points, scales and CORRECTIONS (but for whole ones).

    HARDWARE: the device converts E4M3 itself, which gives the number without a correction
    """
    if CODE == 0:
        if HARDWARE:
            value = codes.to(tl.float8e4nv, bitcast=True).to(tl.float32)
        else:
            wide = codes.to(tl.int16)
            bits = ((wide & 0x7F) << 7) | ((wide & 0x80) << 8)
            value = bits.to(tl.float16, bitcast=True).to(tl.float32) * 256.0
    elif CODE == 1:
        value = codes.to(tl.int8, bitcast=True).to(tl.float32)
    else:
        nibble = codes & 0xF
        if HALF == 1:
            nibble = codes >> 4
        if CODE == 2:
            value = nibble.to(tl.float32)
        else:
            wide = nibble.to(tl.int16)
            bits = ((wide & 0x7) << 9) | ((wide & 0x8) << 12)
            value = bits.to(tl.float16, bitcast=True).to(tl.float32) * 16384.0
    return value


@triton.jit
def _dequantise_kernel(
    codes, scales, zeros, row_scales, out, columns, depth, groups,
    CODE: tl.constexpr, APART: tl.constexpr, SCALE: tl.constexpr, GROUP: tl.constexpr, HAS_ZEROS: tl.constexpr,
    HAS_ROW_SCALES: tl.constexpr, HARDWARE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One row's numbers, a block of codes a program."""
    n = tl.program_id(0).to(tl.int64)
    PACKED: tl.constexpr = 2 if CODE >= 2 else 1
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = place < depth // PACKED
    stored = tl.load(codes + n * (depth // PACKED) + place, mask=mask, other=0, eviction_policy="evict_first")
    factor = 1.0
    if HAS_ROW_SCALES:
        factor = tl.load(row_scales + n)
    low = 0.0
    for half in tl.static_range(PACKED):
        k = place
        if PACKED == 2:
            k = (place // APART) * (2 * APART) + half * APART + place % APART
        value = _numbers(stored, CODE, half, HARDWARE)
        at = n * groups + k // GROUP
        if HAS_ZEROS:
            value -= tl.load(zeros + at, mask=mask, other=0).to(tl.float32) - (128.0 if CODE == 1 else 0.0)
        elif CODE == 2:
            value -= 8.0
        value *= _scale(scales, at, mask, False, SCALE) * factor
        if PACKED == 1 or APART == 16:
            tl.store(out + n * depth + k, value.to(out.dtype.element_ty), mask=mask)
        elif half == 0:
            low = value
        else:
            # In order before they are written: each half's runs are of fewer bytes than memory takes at once.
            mixed = tl.permute(tl.reshape(tl.join(low, value), (BLOCK // APART, APART, 2)), (0, 2, 1))
            k = tl.program_id(1) * (2 * BLOCK) + tl.arange(0, 2 * BLOCK)
            tl.store(out + n * depth + k, tl.reshape(mixed, (2 * BLOCK,)).to(out.dtype.element_ty), mask=k < depth)


def dequantised(weight: CodedWeight, dtype: torch.dtype, rows: slice | None = None) -> torch.Tensor:
    """Some rows' numbers in dtype. Shapes: -> [n, K]"""
    first, end, _ = (rows or slice(None)).indices(weight.shape[0])
    depth, groups = weight.shape[1], weight.scales.shape[1]
    out = torch.empty(end - first, depth, dtype=dtype, device=weight.codes.device)
    width = depth // weight.numbers_a_byte
    block = min(2048, max(16, triton.next_power_of_2(width)))
    none = weight.codes
    codes = weight.codes[first:end]
    _dequantise_kernel[(end - first, triton.cdiv(width, block))](
        codes if codes.dtype == torch.uint8 else codes.view(torch.uint8), weight.scales[first:end],
        none if weight.zeros is None else weight.zeros[first:end],
        none if weight.row_scales is None else weight.row_scales[first:end],
        out, end - first, depth, groups,
        CODE_NUMBERS[weight.code], weight.apart, SCALE_NUMBERS[weight.scale_code], weight.group,
        weight.zeros is not None, weight.row_scales is not None, converts_fp8(out.device), block, num_warps=4,
    )  # fmt: skip
    return out


def large_linear(x: torch.Tensor, weight: CodedWeight, bias: torch.Tensor | None) -> torch.Tensor:
    """Decoded once, some rows of the weight at a time. Shapes: x [M, K] -> [M, N]"""
    columns, depth = weight.shape
    step = max(256, SCRATCH_BYTES // (depth * x.element_size()) // 256 * 256)
    out = torch.empty(x.shape[0], columns, dtype=x.dtype, device=x.device)
    for first in range(0, columns, step):
        rows = slice(first, min(columns, first + step))
        torch.mm(x, dequantised(weight, x.dtype, rows).T, out=out[:, rows])
    return out if bias is None else out.add_(bias)
