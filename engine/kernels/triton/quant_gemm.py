"""A quantised weight times more than a few rows: tiles decoded in registers for tensor units, or decoded once for all.

A tile's codes become exact numbers of the activations' type; multipliers of groups of 64 and more are applied to the
group's float32 sum, smaller groups' to each number. For many rows decoding in each tile would be repeated too often:
the weight is decoded to scratch, and the matrix library multiplies it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from engine.kernels.triton.coded import CodedWeight
from engine.kernels.triton.decode import CODE_NUMBERS, SCALE_NUMBERS, _scale
from engine.kernels.triton.device import MAX_LOCKS, converts_fp8, locks_of, speaks_ptx

SCRATCH_BYTES = 256 << 20  # of decoded numbers: a layer's largest matrix; smaller parts cost 10 %
PROGRAMS_WANTED = 264  # two for each unit of a large GPU
MAX_SPLITS = 8
MAGIC_BITS = {torch.bfloat16: 0x4300, torch.float16: 0x6400}


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


def _ptx(byte: str, shift: str) -> str:
    """Four bytes' halves, each below a byte of 128's or 1024's bits, as two words of two numbers."""
    words = "prmt.b32 $0, t, m, 0x4140; prmt.b32 $1, t, m, 0x4342;"
    return f"{{ .reg .b32 t, m; mov.b32 m, {byte}; {shift} and.b32 t, t, 0x0F0F0F0F; {words} }}"


_LOW, _HIGH = "mov.b32 t, $2;", "shr.u32 t, $2, 4;"
LOW_BF16, HIGH_BF16 = tl.constexpr(_ptx("0x43434343", _LOW)), tl.constexpr(_ptx("0x43434343", _HIGH))
LOW_FP16, HIGH_FP16 = tl.constexpr(_ptx("0x64646464", _LOW)), tl.constexpr(_ptx("0x64646464", _HIGH))


@triton.jit
def _above(stored, TYPE: tl.constexpr, MAGIC: tl.constexpr, HALF: tl.constexpr, PTX: tl.constexpr):
    """128 or 1024, whose last bits are free, plus the code in a half of each byte, by setting bits."""
    if PTX:
        if MAGIC == 0x4300:
            asm: tl.constexpr = LOW_BF16 if HALF == 0 else HIGH_BF16
            value = tl.inline_asm_elementwise(asm, "=r,=r,r", [stored], dtype=tl.bfloat16, is_pure=True, pack=4)
        else:
            other: tl.constexpr = LOW_FP16 if HALF == 0 else HIGH_FP16
            value = tl.inline_asm_elementwise(other, "=r,=r,r", [stored], dtype=tl.float16, is_pure=True, pack=4)
    else:
        nibble = (stored & 0xF) if HALF == 0 else (stored >> 4)
        value = (nibble.to(tl.int16) | MAGIC).to(TYPE, bitcast=True)
    return value


@triton.jit
def _dequantise_kernel(
    codes, scales, zeros, row_scales, out, columns, depth, groups,
    CODE: tl.constexpr, SCALE: tl.constexpr, GROUP: tl.constexpr, HAS_ZEROS: tl.constexpr,
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
    for half in tl.static_range(PACKED):
        k = place
        if PACKED == 2:
            k = (place // 16) * 32 + half * 16 + place % 16
        value = _numbers(stored, CODE, half, HARDWARE)
        at = n * groups + k // GROUP
        if HAS_ZEROS:
            value -= tl.load(zeros + at, mask=mask, other=0).to(tl.float32)
        elif CODE == 2:
            value -= 8.0
        value *= _scale(scales, at, mask, False, SCALE) * factor
        tl.store(out + n * depth + k, value.to(out.dtype.element_ty), mask=mask)


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
        CODE_NUMBERS[weight.code], SCALE_NUMBERS[weight.scale_code], weight.group,
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


@triton.jit
def _quant_gemm_kernel(
    x, codes, scales, zeros, row_scales, bias, out, parts, locks, rows, columns, depth, groups, per_split,
    CODE: tl.constexpr, SCALE: tl.constexpr, GROUP: tl.constexpr, LATE: tl.constexpr, HAS_ZEROS: tl.constexpr,
    HAS_ROW_SCALES: tl.constexpr, HAS_BIAS: tl.constexpr, HARDWARE: tl.constexpr, MAGIC: tl.constexpr,
    PTX: tl.constexpr, SPLITS: tl.constexpr, EVEN: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    """GROUP: numbers that share a scale, 0 for a row. LATE: scales are applied to the sums of a group of BLOCK_K.

    MAGIC: the bits of 128 or 1024 in the inputs' type, where int4 codes may stand below them; else 0
    """
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    split = tl.program_id(2)
    PACKED: tl.constexpr = 2 if CODE >= 2 else 1
    in_m = m < rows
    in_n = n < columns
    safe_n = tl.minimum(n, columns - 1).to(tl.int64)
    lanes = tl.arange(0, BLOCK_K // PACKED)
    x_rows = x + tl.minimum(m, rows - 1).to(tl.int64)[:, None] * depth
    w_rows = codes + (safe_n * (depth // PACKED))[None, :]
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    first = split * per_split
    for start in range(first, tl.minimum(first + per_split, depth), BLOCK_K):
        place = start // PACKED + lanes
        in_k = place < depth // PACKED
        if EVEN:
            stored = tl.load(w_rows + place[:, None])
        else:
            stored = tl.load(w_rows + place[:, None], mask=in_k[:, None], other=0)
        part = acc
        if LATE:
            part = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for half in tl.static_range(PACKED):
            k = place
            if PACKED == 2:
                k = (place // 16) * 32 + half * 16 + place % 16
            # Rows that are not there are not fetched: of one row sixteen copies would be as many bytes as the codes.
            if EVEN:
                a = tl.load(x_rows + k[None, :], mask=in_m[:, None], other=0.0)
            else:
                a = tl.load(x_rows + k[None, :], mask=in_m[:, None] & in_k[None, :], other=0.0)
            if MAGIC > 0:
                # 128 or 1024 plus the code by setting bits, less as much plus the zero point: exact in 16 bits.
                w = _above(stored, a.dtype, MAGIC, half, PTX)
                nothing = 8.0
                if HAS_ZEROS:
                    nothing = tl.load(zeros + safe_n * groups + start // GROUP).to(tl.float32)[None, :]
                w -= (nothing + (128.0 if MAGIC == 0x4300 else 1024.0)).to(a.dtype)
            else:
                w = _numbers(stored, CODE, half, HARDWARE)
            if CODE == 2 and MAGIC == 0:
                if HAS_ZEROS:
                    at = safe_n[None, :] * groups + (k // GROUP)[:, None]
                    w -= tl.load(zeros + at, mask=in_k[:, None], other=0).to(tl.float32)
                else:
                    w -= 8.0
            if GROUP > 0 and not LATE:
                at = safe_n[None, :] * groups + (k // GROUP)[:, None]
                w *= _scale(scales, at, in_k[:, None], EVEN, SCALE)
            part = tl.dot(a, w.to(a.dtype), part, input_precision="ieee")
        if LATE:
            acc += part * _scale(scales, safe_n * groups + start // GROUP, in_n, True, SCALE)[None, :]
        else:
            acc = part
    if GROUP == 0:
        acc *= tl.load(scales + safe_n).to(tl.float32)[None, :]
    if HAS_ROW_SCALES:
        acc *= tl.load(row_scales + safe_n)[None, :]
    at = m.to(tl.int64)[:, None] * columns + n[None, :]
    mask = in_m[:, None] & in_n[None, :]
    if SPLITS > 1:
        # The program that ends last adds all parts, always in the same order.
        part_at = parts + at
        part_stride = rows * columns
        tl.store(part_at + split * part_stride, acc, mask=mask)
        tl.debug_barrier()
        lock = locks + tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
        ended = tl.atomic_add(lock, 1, sem="acq_rel")
        if ended == SPLITS - 1:
            total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
            for other in tl.static_range(SPLITS):
                total += tl.load(part_at + other * part_stride, mask=mask, other=0.0, cache_modifier=".cg")
            if HAS_BIAS:
                total += tl.load(bias + safe_n).to(tl.float32)[None, :]
            tl.store(out + at, total.to(out.dtype.element_ty), mask=mask)
            tl.store(lock, 0)
    else:
        if HAS_BIAS:
            acc += tl.load(bias + safe_n).to(tl.float32)[None, :]
        tl.store(out + at, acc.to(out.dtype.element_ty), mask=mask)


@dataclass(frozen=True, slots=True)
class GemmTiles:
    block_m: int
    block_n: int
    block_k: int
    warps: int
    stages: int
    splits: int = 0  # 0: enough to fill the device


def quant_gemm(
    x: torch.Tensor, weight: CodedWeight, bias: torch.Tensor | None = None, tiles: GemmTiles | None = None
) -> torch.Tensor:
    """Shapes: x [M, K]; weight (N, K); bias [N] -> [M, N]"""
    rows, depth = x.shape
    columns, groups = weight.shape[0], weight.scales.shape[1]
    tiles = tiles or gemm_tiles(rows)
    group = 0 if groups == 1 and weight.code in ("fp8", "int8") else weight.group
    late = group >= 64
    block_k = group if late else tiles.block_k
    whole = weight.zeros is None or weight.zeros.dtype == torch.uint8
    magic = MAGIC_BITS.get(x.dtype, 0) if weight.code == "int4" and late and whole else 0
    row_tiles, column_tiles = triton.cdiv(rows, tiles.block_m), triton.cdiv(columns, tiles.block_n)
    splits = tiles.splits or max(1, min(MAX_SPLITS, PROGRAMS_WANTED // (row_tiles * column_tiles), depth // 1024))
    per_split = triton.cdiv(triton.cdiv(depth, splits), block_k) * block_k
    splits = triton.cdiv(depth, per_split)
    assert splits == 1 or row_tiles * column_tiles <= MAX_LOCKS, (rows, columns)
    out = torch.empty(rows, columns, dtype=x.dtype, device=x.device)
    parts = out
    if splits > 1:
        parts = torch.empty(splits, rows, columns, dtype=torch.float32, device=x.device)
    none = weight.codes
    _quant_gemm_kernel[(column_tiles, row_tiles, splits)](
        x.contiguous(), weight.codes if weight.codes.dtype == torch.uint8 else weight.codes.view(torch.uint8),
        weight.scales, none if weight.zeros is None else weight.zeros,
        none if weight.row_scales is None else weight.row_scales, none if bias is None else bias, out,
        parts, locks_of(x.device), rows, columns, depth, groups, per_split,
        CODE_NUMBERS[weight.code], SCALE_NUMBERS[weight.scale_code], group, late,
        weight.zeros is not None, weight.row_scales is not None, bias is not None, converts_fp8(x.device), magic,
        speaks_ptx(x.device), splits, depth % block_k == 0, tiles.block_m, tiles.block_n, block_k,
        num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    return out


def gemm_tiles(rows: int) -> GemmTiles:
    if rows <= 16:
        return GemmTiles(16, 64, 128, 2, 4)
    if rows <= 32:
        return GemmTiles(32, 64, 128, 4, 4)
    return GemmTiles(64, 64, 128, 4, 3)
