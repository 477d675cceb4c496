"""A quantised weight times 5 to 128 rows, exact activations: the weight's codes are the left side of the product.

So a tile has as many weight rows as the matrix units want at least, and its codes become numbers in the registers that
the units read them from; the few activations are the right side. A group's multiplier and zero point are asked for a
step before they are needed. A row's result depends on no other's.
"""

# mypy: disable-error-code="assignment"

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from engine.kernels.triton.chained import ask_for, chains, launch, let_next_start, wait_for_last
from engine.kernels.triton.coded import CodedWeight
from engine.kernels.triton.decode import CODE_NUMBERS, SCALE_NUMBERS, _high_half, _low_half, _scale
from engine.kernels.triton.device import MAX_LOCKS, converts_fp8, locks_of, speaks_ptx
from engine.kernels.triton.quant_gemm import _numbers
from engine.kernels.triton.tile_codes import LIFTS, SMALL_FP4, _above, _of_words, _small_fp4

MAX_ROWS = 128
FEWER_ROWS = 64
DEEP = 8192
MANY_TILES = 200  # from here on a large GPU is busy without sharing out K
LEAST_PART = 512  # numbers of K in a part
AHEAD_LINES = tl.constexpr(2)  # of 128 bytes of each row, asked for before the activations are there
MAGIC_BITS = {torch.bfloat16: 0x4300, torch.float16: 0x6400}


@triton.jit
def _of_group(scales, zeros, at, mask, SCALE: tl.constexpr, ZEROS: tl.constexpr, nothing):
    """(multiplier, zero point) of each row's group. ZEROS: 0 none, 1 beside the scales, 2 paired with them"""
    if ZEROS == 2:
        pair = tl.load(zeros + at, mask=mask, other=0)
        return _low_half(pair), (_high_half(pair, False) - 1.0) * 256.0
    scale = _scale(scales, at, mask, False, SCALE)
    zero = tl.zeros_like(scale) + nothing
    if ZEROS == 1:
        zero = tl.load(zeros + at, mask=mask, other=0).to(tl.float32)
    return scale, zero


@triton.jit
def _of_runs(
    scales, zeros, n, groups, start, end, SCALE: tl.constexpr, ZEROS: tl.constexpr, GROUP: tl.constexpr,
    RUN: tl.constexpr, RUNS: tl.constexpr, PACKED: tl.constexpr, EACH: tl.constexpr,
):  # fmt: skip
    """(multiplier, zero point) of the runs of RUN codes from start on, of the low halves and of the high ones."""
    k = start + tl.arange(0, RUNS) * (RUN * PACKED)
    at = n[:, None] * groups + (k // GROUP)[None, :]
    mask = (n >= 0)[:, None] & (k < end)[None, :]
    scale = _scale(scales, at, mask, False, SCALE)
    zero, second, second_zero = scale, scale, scale
    if ZEROS == 1:
        zero = tl.load(zeros + at, mask=mask, other=0).to(tl.float32)
        second_zero = zero
    if EACH == 2:
        second = _scale(scales, at + 1, mask, False, SCALE)
        if ZEROS == 1:
            second_zero = tl.load(zeros + at + 1, mask=mask, other=0).to(tl.float32)
    return scale, zero, second, second_zero


@triton.jit
def _spread(values, RUN: tl.constexpr):
    """Each value RUN times. Shapes: values [N, R] -> [N, R * RUN]"""
    wide = tl.broadcast_to(values[:, :, None], [values.shape[0], values.shape[1], RUN])
    return tl.reshape(wide, [values.shape[0], values.shape[1] * RUN])


@triton.jit
def _turn_kernel(x, out, depth, APART: tl.constexpr, TILE: tl.constexpr, CHAINED: tl.constexpr):
    """A row's numbers in the order in which half bytes are read: of each tile those of low halves first."""
    if CHAINED:
        let_next_start()
        wait_for_last()
    row = x + tl.program_id(0).to(tl.int64) * depth
    to = out + tl.program_id(0).to(tl.int64) * depth
    lanes = tl.arange(0, TILE)
    place = lanes % (TILE // 2)
    first = tl.program_id(1) * TILE
    k = first + (place // APART) * (2 * APART) + (lanes // (TILE // 2)) * APART + place % APART
    tl.store(to + first + lanes, tl.load(row + k))


@triton.jit
def _tile_rows_kernel(
    x, codes, scales, zeros, row_scales, bias, out, parts, locks, rows, columns, depth, groups, per_split,
    CODE: tl.constexpr, APART: tl.constexpr, SCALE: tl.constexpr, GROUP: tl.constexpr, LATE: tl.constexpr,
    FOUR: tl.constexpr, WORDS: tl.constexpr, LIFT: tl.constexpr, LOWER: tl.constexpr, ZEROS: tl.constexpr,
    HAS_ROW_SCALES: tl.constexpr, HAS_BIAS: tl.constexpr, HARDWARE: tl.constexpr, MAGIC: tl.constexpr,
    PTX: tl.constexpr, TURNED: tl.constexpr, MOVES: tl.constexpr, CHAINED: tl.constexpr, SPLITS: tl.constexpr,
    EVEN: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """GROUP: numbers that share a scale, 0 for a row. LATE: scales are applied to the sums of a group of BLOCK_K.

    APART: numbers between a byte's low one and its high one. FOUR: E2M1 by _small_fp4. WORDS: multipliers of a step are
    read as one word of each row. MOVES: half bytes may be decoded where the matrix units read them. TURNED: x is as
    _turn_kernel writes it. LIFT: times scales and LOWER times sums, gives what _small_fp4 leaves out; 0 where scales
    are too large for it.
    MAGIC: the bits of 128 or 1024 in the inputs' type, where int4 codes may stand below them; else 0
    """
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    split = tl.program_id(2)
    PACKED: tl.constexpr = 2 if CODE >= 2 else 1
    in_n = n < columns
    safe_n = tl.minimum(n, columns - 1).to(tl.int64)
    lanes = tl.arange(0, BLOCK_K // PACKED)
    row_bytes = depth // PACKED
    if PACKED == 2:
        row_bytes = tl.multiple_of(row_bytes, 16)  # else the compiler loads half as much at once
    w_rows = codes + (safe_n * row_bytes)[:, None]
    first = tl.multiple_of(split * per_split, BLOCK_K)
    end = tl.minimum(first + per_split, depth)
    NOTHING: tl.constexpr = 8.0 if CODE == 2 else 0.0
    RUN: tl.constexpr = APART if PACKED == 2 else GROUP
    RUNS: tl.constexpr = 1 if LATE or GROUP == 0 else BLOCK_K // PACKED // RUN
    EACH: tl.constexpr = 2 if PACKED == 2 and GROUP == APART else 1  # groups of a block of half bytes
    if WORDS:
        WORD: tl.constexpr = tl.int64 if RUNS == 8 else tl.int32 if RUNS == 4 else tl.int16
        scale_words = scales.to(tl.pointer_type(WORD)) + (safe_n * (groups // RUNS))[:, None]
        next_scale = _of_words(tl.load(scale_words + first // BLOCK_K), SCALE, LIFT, RUNS)
    elif LATE:
        next_scale, next_zero = _of_group(scales, zeros, safe_n * groups + first // GROUP, in_n, SCALE, ZEROS, NOTHING)
    elif RUNS > 1:
        next_scale, next_zero, next_second, next_second_zero = _of_runs(
            scales, zeros, safe_n, groups, first, end, SCALE, ZEROS, GROUP, RUN, RUNS, PACKED, EACH
        )
    if CHAINED:
        ask_for(w_rows + tl.minimum(first // PACKED + tl.arange(0, AHEAD_LINES) * 128, row_bytes - 1)[None, :])
    if CHAINED:
        wait_for_last()  # and let nothing start meanwhile: its programs would crowd where there is room now
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    in_m = m < rows
    x_rows = x + tl.minimum(m, rows - 1).to(tl.int64)[None, :] * depth
    acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    for start in range(first, end, BLOCK_K):
        place = start // PACKED + lanes
        in_k = place < row_bytes
        if EVEN:
            stored = tl.load(w_rows + place[None, :])
        else:
            stored = tl.load(w_rows + place[None, :], mask=in_k[None, :], other=0)
        part = acc
        if WORDS:
            scale, second = next_scale, next_scale
            words = tl.load(scale_words + tl.minimum(start + BLOCK_K, end - BLOCK_K) // BLOCK_K)
            next_scale = _of_words(words, SCALE, LIFT, RUNS)
        elif LATE:
            part = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
            scale, zero = next_scale, next_zero
            later = start + BLOCK_K
            next_scale, next_zero = _of_group(
                scales, zeros, safe_n * groups + later // GROUP, in_n & (later < end), SCALE, ZEROS, NOTHING
            )
        elif RUNS > 1:
            scale, zero, second, second_zero = next_scale, next_zero, next_second, next_second_zero
            next_scale, next_zero, next_second, next_second_zero = _of_runs(
                scales, zeros, safe_n, groups, start + BLOCK_K, end, SCALE, ZEROS, GROUP, RUN, RUNS, PACKED, EACH
            )
        for half in tl.static_range(PACKED):
            k = place
            if PACKED == 2:
                if TURNED:
                    k = start + half * (BLOCK_K // 2) + lanes
                else:
                    k = (place // APART) * (2 * APART) + half * APART + place % APART
            # Rows that are not there are not fetched.
            if EVEN:
                a = tl.load(x_rows + k[:, None], mask=in_m[None, :], other=0.0)
            else:
                a = tl.load(x_rows + k[:, None], mask=in_m[None, :] & in_k[:, None], other=0.0)
            if MAGIC > 0:
                # 128 or 1024 plus the code by setting bits, less as much plus the zero point: exact in 16 bits.
                w = _above(stored, a.dtype, MAGIC, half, PTX, MOVES)
                w -= (zero + (128.0 if MAGIC == 0x4300 else 1024.0)).to(a.dtype)[:, None]
            elif FOUR:
                # Two digits times one or four: exact in bfloat16.
                w = _small_fp4(stored, half, MOVES)
                factor = scale if half == 0 else second
                if LIFT == 0:
                    w *= tl.full(w.shape, SMALL_FP4, tl.bfloat16)
                elif not WORDS:
                    factor *= LIFT
                w *= _spread(factor.to(tl.bfloat16), RUN)
            else:
                w = _numbers(stored, CODE, half, HARDWARE)
                if CODE == 2 and LATE:
                    w -= zero[:, None]
                elif CODE == 2 and ZEROS == 0:
                    w -= 8.0
                if RUNS > 1:
                    if CODE == 2 and ZEROS == 1:
                        w -= _spread(zero if half == 0 else second_zero, RUN)
                    elif ZEROS == 1:
                        w -= _spread(zero - 128.0, RUN)
                    w *= _spread(scale if half == 0 else second, RUN)
            part = tl.dot(w.to(a.dtype), a, part, input_precision="ieee")
        if LATE:
            acc += part * scale[:, None]
        else:
            acc = part
    if GROUP == 0:
        acc *= tl.load(scales + safe_n).to(tl.float32)[:, None]
    if HAS_ROW_SCALES:
        acc *= tl.load(row_scales + safe_n)[:, None]
    if FOUR and LOWER != 1:
        acc *= LOWER
    at = m.to(tl.int64)[None, :] * columns + n[:, None]
    mask = in_m[None, :] & in_n[:, None]
    last = True
    if SPLITS > 1:
        # The program that ends last adds all parts, always in the same order.
        tile = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
        within = tl.arange(0, BLOCK_N)[:, None] * BLOCK_M + tl.arange(0, BLOCK_M)[None, :]
        part_at = parts + tile.to(tl.int64) * (SPLITS * BLOCK_N * BLOCK_M) + within
        tl.store(part_at + split * (BLOCK_N * BLOCK_M), acc)
        tl.debug_barrier()
        last = tl.atomic_add(locks + tile, 1, sem="acq_rel") == SPLITS - 1
        if last:
            acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
            for other in tl.static_range(SPLITS):
                acc += tl.load(part_at + other * (BLOCK_N * BLOCK_M), cache_modifier=".cg")
            tl.store(locks + tile, 0)
    if last:
        if HAS_BIAS:
            acc += tl.load(bias + safe_n).to(tl.float32)[:, None]
        tl.store(out + at, acc.to(out.dtype.element_ty), mask=mask)


@dataclass(frozen=True, slots=True)
class RowTiles:
    block_n: int  # of the weight's rows
    block_k: int
    warps: int
    stages: int
    splits: int = 1  # of K, where there are few tiles
    turned: bool = False  # activations are put in the order of half bytes before
    apart: bool = False  # half bytes are decoded where loads put them, not where the matrix units read them


def tile_rows(
    x: torch.Tensor, weight: CodedWeight, bias: torch.Tensor | None = None, tiles: RowTiles | None = None
) -> torch.Tensor:
    """Shapes: x [M, K]; weight (N, K); bias [N] -> [M, N]"""
    rows, depth = x.shape
    columns, groups = weight.shape[0], int(weight.scales.shape[1])
    device = x.device
    tiles = tiles or row_tiles(weight, rows)
    group = 0 if groups == 1 and weight.code in ("fp8", "int8") else weight.group
    late = group >= 64
    block_k = group if late else tiles.block_k
    whole = weight.zeros is None or weight.zeros.dtype == torch.uint8
    magic = MAGIC_BITS.get(x.dtype, 0) if weight.code == "int4" and late and whole else 0
    lift, lower = LIFTS[weight.scale_code] if weight.scale_code == "e4m3" or weight.small else (0.0, 1.0)
    four = weight.code == "fp4" and x.dtype == torch.bfloat16 and speaks_ptx(device)
    words = four and depth % block_k == 0 and group >= 2 * weight.apart and block_k // group in (2, 4, 8)
    words = words and weight.scales.data_ptr() % 8 == 0
    paired = late and weight.pairs is not None
    zeros = weight.pairs if paired else weight.zeros
    block_m = max(16, triton.next_power_of_2(rows)) if rows <= MAX_ROWS else 64
    tall, wide = triton.cdiv(rows, block_m), triton.cdiv(columns, tiles.block_n)
    num_tiles = tall * wide
    splits = tiles.splits if num_tiles < MANY_TILES else 1
    per_split = triton.cdiv(max(LEAST_PART, triton.cdiv(depth, splits)), block_k) * block_k
    splits = triton.cdiv(depth, per_split)
    assert splits == 1 or num_tiles <= MAX_LOCKS, (rows, columns)
    out = torch.empty(rows, columns, dtype=x.dtype, device=device)
    parts = out
    if splits > 1:
        parts = torch.empty(num_tiles * splits * tiles.block_n * block_m, dtype=torch.float32, device=device)
    none = weight.codes
    x = x.contiguous()
    turned = tiles.turned and weight.numbers_a_byte == 2 and depth % block_k == 0
    if turned:
        x, plain = torch.empty_like(x), x
        _turn_kernel[(rows, depth // block_k)](
            plain, x, depth, weight.apart, block_k, chains(device), num_warps=1, **launch(device)
        )
    _tile_rows_kernel[(wide, tall, splits)](
        x, none if none.dtype == torch.uint8 else none.view(torch.uint8),
        weight.scales, none if zeros is None else zeros,
        none if weight.row_scales is None else weight.row_scales, none if bias is None else bias, out,
        parts, locks_of(device), rows, columns, depth, groups, per_split,
        CODE_NUMBERS[weight.code], weight.apart, SCALE_NUMBERS[weight.scale_code], group, late,
        four, words, lift, lower,
        2 if paired else int(zeros is not None), weight.row_scales is not None, bias is not None,
        converts_fp8(device), magic, speaks_ptx(device), turned, not tiles.apart, chains(device), splits,
        depth % block_k == 0, block_m, tiles.block_n, block_k, num_warps=tiles.warps, num_stages=tiles.stages,
        **launch(device),
    )  # fmt: skip
    return out


def takes(weight: CodedWeight, rows: int) -> bool:
    """Whether decoding in tiles takes less than decoding once before, where both can."""
    columns = weight.shape[0]
    middle = 4096 < columns < 128 * MANY_TILES  # too few tiles for all units, too many for parts of K in one go
    return rows <= (FEWER_ROWS if weight.numbers_a_byte == 2 and middle else MAX_ROWS)


def row_tiles(weight: CodedWeight, rows: int) -> RowTiles:
    """What an H200 does soonest."""
    columns, depth = weight.shape
    if weight.numbers_a_byte == 2:
        if rows <= 32:
            return RowTiles(64, 128, 2, 3, 8, turned=True)
        if rows <= 64 and weight.code == "int4":
            return RowTiles(128, 128, 4, 3, 4, turned=True)
        return RowTiles(128, 128, 8, 3, 4, turned=True)
    if rows <= 32:
        return RowTiles(64, 128, 2, 4, 8 if rows <= 16 or columns <= 4096 else 4)
    if rows <= 64:
        return RowTiles(64, 128, 4, 3 if 4096 < columns < 64 * MANY_TILES else 4, 4)
    return RowTiles(64, 128, 4, 3, 4 if depth >= DEEP else 2)
