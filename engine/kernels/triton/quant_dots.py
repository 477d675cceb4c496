"""A weight of whole-number codes times up to four rows: products of integers, which the device does two at a time.

Rows come as int16 (fine_rows.py), so that a group's product is exact until its multiplier. Half-byte codes become bytes
by a mask or a look-up of four at once, with no conversion of a number. The first codes are asked for before the rows
are there. A program owns some output columns for all of K. Every row is summed in the same order whatever their number.
"""

# mypy: disable-error-code="assignment, var-annotated"
# ruff: noqa: RUF005 - the kernel compiler knows no star in a tuple

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from engine.kernels.triton.chained import chains, launch, let_next_start, wait_for_last
from engine.kernels.triton.coded import HALF_BYTES, CodedWeight
from engine.kernels.triton.decode import _high_half, _low_half, _scale
from engine.kernels.triton.device import converts_fp8, speaks_ptx
from engine.kernels.triton.fine_rows import CHUNK, FineForm, FineRows
from engine.kernels.triton.quant_gemv import form_of
from engine.kernels.triton.tuned import few_key, tuned

MAX_ROWS = 4
# What stands for nothing: codes of int8 are signed, those of int4 are not, E2M1 is looked up as 12 plus twice itself.
MIDDLES = {"int8": 0.0, "int4": 8.0, "fp4": 12.0}


@triton.jit
def _of_word(word, place: tl.constexpr):
    """The int16 in a place of a 64-bit word."""
    return ((word << (48 - 16 * place)) >> 48).to(tl.int32)


@triton.jit
def _byte(codes, place: tl.constexpr, CODE: tl.constexpr, HIGH: tl.constexpr):
    """The whole number of a place's byte, or of its half."""
    byte = ((codes << (56 - 8 * place)) >> 56).to(tl.int32)
    if CODE == 1:
        value = byte
    else:
        value = (byte >> 4) & 15 if HIGH else byte & 15
        if CODE == 3:
            exponent = (value >> 1) & 3
            fraction = value & 1
            twice = tl.where(exponent == 0, fraction, (2 + fraction) << tl.maximum(exponent - 1, 0))
            value = tl.where(value >= 8, 12 - twice, 12 + twice)
    return value


@triton.jit
def _dots_plain(codes, inputs, first: tl.constexpr, HIGH: tl.constexpr, CODE: tl.constexpr):
    """Eight codes of each word, of whole bytes or their halves, with the inputs of two words from `first` on."""
    total = _byte(codes, 0, CODE, HIGH) * _of_word(inputs[first], 0)
    for place in tl.static_range(1, 8):
        total += _byte(codes, place, CODE, HIGH) * _of_word(inputs[first + place // 4], place % 4)
    return total


@triton.jit
def _dots(codes, inputs, CODE: tl.constexpr, HIGH: tl.constexpr, PTX: tl.constexpr):
    """Products of each 64-bit word of codes, int32; of half bytes those of the low or the high halves."""
    if not PTX:
        total = _dots_plain(codes, inputs, 2 if HIGH else 0, HIGH, CODE)
    elif CODE == 1:
        total = tl.inline_asm_elementwise(
            """{ .reg .b32 a, b, p, q, s;
            mov.b64 {a, b}, $1;
            mov.b64 {p, q}, $2;
            dp2a.lo.s32.s32 s, p, a, 0;
            dp2a.hi.s32.s32 s, q, a, s;
            mov.b64 {p, q}, $3;
            dp2a.lo.s32.s32 s, p, b, s;
            dp2a.hi.s32.s32 $0, q, b, s; }""",
            "=r,l,l,l", [codes, inputs[2 * HIGH], inputs[2 * HIGH + 1]], dtype=tl.int32, is_pure=True, pack=1,
        )  # fmt: skip
    elif CODE == 2 and HIGH:
        total = tl.inline_asm_elementwise(
            """{ .reg .b32 a, b, p, q, s;
            mov.b64 {a, b}, $1;
            shr.u32 a, a, 4;
            and.b32 a, a, 0x0f0f0f0f;
            shr.u32 b, b, 4;
            and.b32 b, b, 0x0f0f0f0f;
            mov.b64 {p, q}, $2;
            dp2a.lo.s32.u32 s, p, a, 0;
            dp2a.hi.s32.u32 s, q, a, s;
            mov.b64 {p, q}, $3;
            dp2a.lo.s32.u32 s, p, b, s;
            dp2a.hi.s32.u32 $0, q, b, s; }""",
            "=r,l,l,l", [codes, inputs[2], inputs[3]], dtype=tl.int32, is_pure=True, pack=1,
        )  # fmt: skip
    elif CODE == 2:
        total = tl.inline_asm_elementwise(
            """{ .reg .b32 a, b, p, q, s;
            mov.b64 {a, b}, $1;
            and.b32 a, a, 0x0f0f0f0f;
            and.b32 b, b, 0x0f0f0f0f;
            mov.b64 {p, q}, $2;
            dp2a.lo.s32.u32 s, p, a, 0;
            dp2a.hi.s32.u32 s, q, a, s;
            mov.b64 {p, q}, $3;
            dp2a.lo.s32.u32 s, p, b, s;
            dp2a.hi.s32.u32 $0, q, b, s; }""",
            "=r,l,l,l", [codes, inputs[0], inputs[1]], dtype=tl.int32, is_pure=True, pack=1,
        )  # fmt: skip
    return total


@triton.jit
def _fp4_bytes(codes):
    """Half-byte E2M1 codes as bytes of 12 plus twice each: (low halves, high halves), in the order of their bytes.

    A look-up's selector with its top bit set gives the sign of a table's byte, which is 0: so one table answers for
    the codes that are not negative, and the other one, asked with those bits turned, for the others.
    """
    return tl.inline_asm_elementwise(
        """{ .reg .b32 a, b, t, u, v, w, x;
        mov.b64 {a, b}, $2;
        xor.b32 t, a, 0x88888888;
        prmt.b32 u, 0x0F0E0D0C, 0x18141210, a;
        prmt.b32 v, 0x090A0B0C, 0x00040608, t;
        or.b32 u, u, v;
        shr.u32 a, a, 16;
        shr.u32 t, t, 16;
        prmt.b32 w, 0x0F0E0D0C, 0x18141210, a;
        prmt.b32 v, 0x090A0B0C, 0x00040608, t;
        or.b32 w, w, v;
        prmt.b32 a, u, w, 0x6420;
        prmt.b32 x, u, w, 0x7531;
        xor.b32 t, b, 0x88888888;
        prmt.b32 u, 0x0F0E0D0C, 0x18141210, b;
        prmt.b32 v, 0x090A0B0C, 0x00040608, t;
        or.b32 u, u, v;
        shr.u32 b, b, 16;
        shr.u32 t, t, 16;
        prmt.b32 w, 0x0F0E0D0C, 0x18141210, b;
        prmt.b32 v, 0x090A0B0C, 0x00040608, t;
        or.b32 w, w, v;
        prmt.b32 b, u, w, 0x6420;
        prmt.b32 u, u, w, 0x7531;
        mov.b64 $0, {a, b};
        mov.b64 $1, {x, u}; }""",
        "=l,=l,l", [codes], dtype=(tl.int64, tl.int64), is_pure=True, pack=1,
    )  # fmt: skip


@triton.jit
def _two_e4m3(scales, at, mask):
    """A block's two multipliers at once, as the device converts them. at: the first one's place, which is even"""
    pair = tl.load(scales.to(tl.pointer_type(tl.int16)) + at // 2, mask=mask, other=0)
    return tl.inline_asm_elementwise(
        """{ .reg .b32 both; .reg .b16 low, high;
        cvt.rn.f16x2.e4m3x2 both, $2;
        mov.b32 {low, high}, both;
        cvt.f32.f16 $0, low;
        cvt.f32.f16 $1, high; }""",
        "=f,=f,h", [pair], dtype=(tl.float32, tl.float32), is_pure=True, pack=1,
    )  # fmt: skip


@triton.jit
def _multipliers(scales, zeros, at, mask, EVEN: tl.constexpr, SCALE: tl.constexpr, ZEROS: tl.constexpr, middle):
    """(multiplier, what stands for nothing) of each group. ZEROS: 0 none, 1 beside the scales, 2 paired with them"""
    if ZEROS == 2:
        pair = tl.load(zeros + at, mask=mask, other=0)
        return _low_half(pair), (_high_half(pair, False) - 1.0) * 256.0
    scale = _scale(scales, at, mask, EVEN, SCALE)
    zero = tl.zeros_like(scale) + middle
    if ZEROS == 1:
        zero = tl.load(zeros + at, mask=mask, other=0).to(tl.float32)
    return scale, zero


@triton.jit
def _dots_kernel(
    x, x_scales, x_sums, codes, scales, zeros, row_scales, bias, out, columns, middle, zero_shift, correction,
    LANES: tl.constexpr, GROUPS: tl.constexpr, ROWS: tl.constexpr, CODE: tl.constexpr, SCALE: tl.constexpr,
    SIXTEENS: tl.constexpr, ZEROS: tl.constexpr, HAS_ROW_SCALES: tl.constexpr, HAS_BIAS: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_G: tl.constexpr, WIDTH: tl.constexpr, PTX: tl.constexpr, CONVERTS: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """x: [ROWS, words of a lane, LANES] 64-bit words. WIDTH: lanes of a group, or of a step where a row is one group.

    SIXTEENS: the halves of a block are groups of their own.
    """
    STEP: tl.constexpr = BLOCK_G * WIDTH
    EVEN: tl.constexpr = LANES % STEP == 0
    GROUPED: tl.constexpr = GROUPS > 1
    WORDS: tl.constexpr = 2 if CODE == 1 else 4
    first_n = tl.program_id(0) * BLOCK_N
    n = tl.minimum(first_n + tl.arange(0, BLOCK_N), columns - 1).to(tl.int64)[:, None, None]
    group_lane = tl.arange(0, BLOCK_G)[None, :, None]
    lane = group_lane * WIDTH + tl.arange(0, WIDTH)[None, None, :]
    each: tl.constexpr = 2 if SIXTEENS else 1
    base = codes + n * LANES
    in_k = lane < LANES
    following = tl.load(base + lane, mask=in_k, other=0, eviction_policy="evict_first")
    place = n * GROUPS
    if GROUPED:
        place = n * GROUPS + group_lane * each
    in_group = (place - n * GROUPS) < GROUPS
    TWO: tl.constexpr = SIXTEENS and SCALE == 1 and CONVERTS and not ZEROS
    next_scale, next_zero = _multipliers(scales, zeros, place, in_group, EVEN, SCALE, ZEROS, middle)
    next_second, next_second_zero = next_scale, next_zero
    if TWO:
        next_scale, next_second = _two_e4m3(scales, place, in_group)
    elif SIXTEENS:
        next_second, next_second_zero = _multipliers(scales, zeros, place + 1, in_group, EVEN, SCALE, ZEROS, middle)
    if CHAINED:
        let_next_start()
        wait_for_last()
    sums = ()
    for _ in tl.static_range(ROWS):
        sums = sums + (tl.zeros([BLOCK_N, BLOCK_G, WIDTH], tl.float32),)
    for start in tl.static_range(0, LANES, STEP):
        words, scale, zero, second, second_zero = following, next_scale, next_zero, next_second, next_second_zero
        at = start + lane
        in_k = at < LANES
        if start + STEP < LANES:
            beyond = at + STEP < LANES
            following = tl.load(base + at + STEP, mask=beyond, other=0, eviction_policy="evict_first")
            if GROUPED:
                place = n * GROUPS + ((start + STEP) // WIDTH + group_lane) * each
                in_group = (place - n * GROUPS) < GROUPS
                if TWO:
                    next_scale, next_second = _two_e4m3(scales, place, in_group)
                else:
                    next_scale, next_zero = _multipliers(scales, zeros, place, in_group, EVEN, SCALE, ZEROS, middle)
                if SIXTEENS and not TWO:
                    next_second, next_second_zero = _multipliers(
                        scales, zeros, place + 1, in_group, EVEN, SCALE, ZEROS, middle
                    )
        if CODE == 3 and PTX:
            low_codes, high_codes = _fp4_bytes(words)
        fresh = ()
        for m in tl.static_range(ROWS):
            inputs = ()
            for w in tl.static_range(WORDS):
                inputs = inputs + (tl.load(x + (m * WORDS + w) * LANES + at, mask=in_k, other=0),)
            x_scale = tl.load(x_scales + m * LANES + at, mask=in_k, other=0.0)
            low_sum = tl.load(x_sums + 2 * m * LANES + at, mask=in_k, other=0.0)
            high_sum = tl.load(x_sums + (2 * m + 1) * LANES + at, mask=in_k, other=0.0)
            total = sums[m]
            if CODE == 1:
                value = _dots(words, inputs, 1, False, PTX).to(tl.float32) * x_scale
                if ZEROS:
                    value -= (zero + zero_shift) * (low_sum + high_sum)
                total += value * scale
            else:
                if CODE == 3 and PTX:
                    low = _dots(low_codes, inputs, 1, False, True)
                    high = _dots(high_codes, inputs, 1, True, True)
                else:
                    low = _dots(words, inputs, CODE, False, PTX)
                    high = _dots(words, inputs, CODE, True, PTX)
                if SIXTEENS:
                    total += (low.to(tl.float32) * x_scale - zero * low_sum) * scale
                    total += (high.to(tl.float32) * x_scale - second_zero * high_sum) * second
                else:
                    total += ((low + high).to(tl.float32) * x_scale - zero * (low_sum + high_sum)) * scale
            fresh = fresh + (total,)
        sums = fresh
    rows = first_n + tl.arange(0, BLOCK_N)
    in_n = rows < columns
    factor = tl.zeros([BLOCK_N], tl.float32) + correction
    if HAS_ROW_SCALES:
        factor *= tl.load(row_scales + rows, mask=in_n, other=0.0)
    added = tl.zeros([BLOCK_N], tl.float32)
    if HAS_BIAS:
        added = tl.load(bias + rows, mask=in_n, other=0.0).to(tl.float32)
    for m in tl.static_range(ROWS):
        result = tl.sum(tl.sum(sums[m], axis=2), axis=1) * factor + added
        tl.store(out + m * columns + rows, result.to(out.dtype.element_ty), mask=in_n)


@dataclass(frozen=True, slots=True)
class DotsTiles:
    block_n: int
    lanes: int  # of a step
    warps: int


def takes(weight: CodedWeight) -> bool:
    """Whether the kernel reads these codes: whole numbers, in chunks of 32."""
    return weight.code in MIDDLES and weight.shape[1] % CHUNK == 0


def form(weight: CodedWeight) -> FineForm:
    """The rows that quant_dots reads with a weight that takes() takes."""
    return FineForm(16 if weight.code in HALF_BYTES else 8)


def dots_tiles(weight: CodedWeight, device: torch.device) -> DotsTiles:
    """What was measured for this shape with one row, else what is usual for such."""
    columns, depth = weight.shape
    found = tuned(device, few_key(weight.code, 1, columns, depth))
    if found is not None and found[0] == "dots":
        return DotsTiles(*found[1])
    if columns >= 16384:
        return DotsTiles(4, 64, 1)
    return DotsTiles(4, 256, 2) if depth <= 8192 else DotsTiles(4, 128, 2)


def quant_dots(
    rows: FineRows,
    weight: CodedWeight,
    dtype: torch.dtype,
    bias: torch.Tensor | None = None,
    tiles: DotsTiles | None = None,
) -> torch.Tensor:
    """Shapes: rows [M, K], M from 1 to 4, in the weight's form; weight (N, K); bias [N] -> [M, N] of dtype"""
    device = rows.codes.device
    columns, depth = weight.shape
    count, lanes = rows.count, depth // rows.lane
    assert rows.lane == form(weight).lane, rows.lane
    assert count <= MAX_ROWS, count
    out = torch.empty(count, columns, dtype=dtype, device=device)
    tiles = tiles or dots_tiles(weight, device)
    code, scale, _, sixteens, has_zeros, has_pairs, has_row_scales = form_of(weight)
    groups = int(weight.scales.shape[1])
    step = min(tiles.lanes, triton.next_power_of_2(lanes))
    # A block of 32 half bytes with two groups is two lanes of both.
    width = step if groups == 1 else weight.group * (2 if sixteens else 1) // rows.lane
    blocks = max(1, step // width)
    none = weight.codes
    zeros = none if weight.zeros is None else weight.zeros if weight.pairs is None else weight.pairs
    _dots_kernel[(triton.cdiv(columns, tiles.block_n),)](
        rows.codes.view(torch.int64), rows.scales, rows.sums, weight.codes.view(torch.int64), weight.scales, zeros,
        none if weight.row_scales is None else weight.row_scales, none if bias is None else bias, out,
        columns, MIDDLES[weight.code], -128.0 if weight.code == "int8" else 0.0, 0.5 if weight.code == "fp4" else 1.0,
        lanes, groups, count, code, scale,
        sixteens, 2 if has_pairs else int(has_zeros), has_row_scales, bias is not None,
        tiles.block_n, blocks, width, speaks_ptx(device), converts_fp8(device), chains(device),
        num_warps=tiles.warps, **launch(device),
    )  # fmt: skip
    return out
