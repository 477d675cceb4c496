"""A weight of half-byte codes times up to four rows: quant_dots.py's product, a block of 32 numbers a thread.

A block is two 64-bit words of codes, whose products with the rows' int16 are summed as whole numbers before its
multiplier. Half bytes become bytes by a mask, or by a look-up of four at once: no number is converted but the block's
sum. Multipliers are read by the thread that needs them, so threads exchange nothing until the end.
"""

# mypy: disable-error-code="assignment, var-annotated"
# ruff: noqa: RUF005 - the kernel compiler knows no star in a tuple

from __future__ import annotations

import triton
import triton.language as tl

from engine.kernels.triton.chained import let_next_start, wait_for_last
from engine.kernels.triton.decode import _high_half, _low_half, _of_e4m3, _scale
from engine.kernels.triton.half_bytes import _halves, _looked_up, _plain_halves, _table
from engine.kernels.triton.layouts import _apart, _within


@triton.jit
def _dots(codes, inputs, first: tl.constexpr, total, PTX: tl.constexpr):
    """total plus the products of each word's eight bytes with the int16 of two words from `first` on, int32."""
    if PTX:
        total = tl.inline_asm_elementwise(
            """{ .reg .b32 a, b, p, q, s;
            mov.b64 {a, b}, $1;
            mov.b64 {p, q}, $2;
            dp2a.lo.s32.s32 s, p, a, $4;
            dp2a.hi.s32.s32 s, q, a, s;
            mov.b64 {p, q}, $3;
            dp2a.lo.s32.s32 s, p, b, s;
            dp2a.hi.s32.s32 $0, q, b, s; }""",
            "=r,l,l,l,r", [codes, inputs[first], inputs[first + 1], total], dtype=tl.int32, is_pure=True, pack=1,
        )  # fmt: skip
    else:
        for place in tl.static_range(8):
            byte = ((codes << (56 - 8 * place)) >> 56).to(tl.int32)
            number = ((inputs[first + place // 4] << (48 - 16 * (place % 4))) >> 48).to(tl.int32)
            total += byte * number
    return total


@triton.jit
def _pair_of_scales(scales, at, mask, CONVERTS: tl.constexpr):
    """A block's two E4M3 multipliers. at: the pair's place"""
    pair = tl.load(scales.to(tl.pointer_type(tl.int16)) + at, mask=mask, other=0)
    if CONVERTS:
        first, second = tl.inline_asm_elementwise(
            """{ .reg .b32 both; .reg .b16 low, high;
            cvt.rn.f16x2.e4m3x2 both, $2;
            mov.b32 {low, high}, both;
            cvt.f32.f16 $0, low;
            cvt.f32.f16 $1, high; }""",
            "=f,=f,h", [pair], dtype=(tl.float32, tl.float32), is_pure=True, pack=1,
        )  # fmt: skip
    else:
        first, second = _of_e4m3(pair.to(tl.int32)), _of_e4m3(pair.to(tl.int32) >> 8)
    return first, second


@triton.jit
def _multipliers(
    scales, zeros, n, known, in_k, GROUPS: tl.constexpr, EACH: tl.constexpr, SCALE: tl.constexpr,
    SIXTEENS: tl.constexpr, ZEROS: tl.constexpr, PTX: tl.constexpr, CONVERTS: tl.constexpr,
):  # fmt: skip
    """(multiplier, what stands for nothing) of blocks' numbers, and of their second halves where those differ.

    known: the blocks. EACH: blocks of a group. ZEROS: 0 none, 1 beside the scales, 2 paired with them. What is not
    there is 0.
    """
    blocks = _apart(known, PTX)
    if SIXTEENS and SCALE == 1 and not ZEROS:
        scale, second = _pair_of_scales(scales, n * (GROUPS // 2) + blocks, in_k, CONVERTS)
        zero = tl.zeros_like(scale)
        second_zero = zero
    else:
        at = n * GROUPS + (2 * blocks if SIXTEENS else _apart(known // EACH, PTX))
        scale, zero = _one_multiplier(scales, zeros, at, in_k, SCALE, ZEROS)
        second, second_zero = scale, zero
        if SIXTEENS:
            second, second_zero = _one_multiplier(scales, zeros, at + 1, in_k, SCALE, ZEROS)
    return scale, zero, second, second_zero


@triton.jit
def _one_multiplier(scales, zeros, at, mask, SCALE: tl.constexpr, ZEROS: tl.constexpr):
    if ZEROS == 2:
        pair = tl.load(zeros + at, mask=mask, other=0)
        scale, zero = _low_half(pair), (_high_half(pair, False) - 1.0) * 256.0
    else:
        scale = _scale(scales, at, mask, False, SCALE)
        zero = tl.zeros_like(scale)
        if ZEROS == 1:
            zero = tl.load(zeros + at, mask=mask, other=0).to(tl.float32)
    return scale, zero


@triton.jit
def _of_blocks(dots):
    """The two words of each block together. Shapes: [2B, N] -> [B, N]"""
    return tl.sum(tl.reshape(dots, (dots.shape[0] // 2, 2, dots.shape[1])), axis=1)


@triton.jit
def _words_of_blocks(values):
    """The two words of each block one by one. Shapes: [2B, N] -> 2 of [B, N]"""
    return tl.split(tl.permute(tl.reshape(values, (values.shape[0] // 2, 2, values.shape[1])), (0, 2, 1)))


@triton.jit
def _summed(
    sums, words, scale, zero, second, second_zero, x, x_scales, x_sums, at, block, low_table, high_table,
    BLOCKS: tl.constexpr, ROWS: tl.constexpr, FP4: tl.constexpr, SIXTEENS: tl.constexpr, EIGHTS: tl.constexpr,
    ZEROS: tl.constexpr, WHOLE_K: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """sums plus the products of some blocks, a tensor for each row. Shapes: sums [STEP, N]; words [2 STEP, N]"""
    MIDDLE: tl.constexpr = 0 if ZEROS else 12 if FP4 else 8
    APART: tl.constexpr = (SIXTEENS and not EIGHTS) or not FP4
    if not PTX:
        low_codes, high_codes = _plain_halves(words, FP4, APART)
    elif FP4:
        low_codes, high_codes = _looked_up(words, low_table, high_table, APART)
    else:
        low_codes, high_codes = _halves(words)
    fresh = ()
    in_lanes = _within(at, 2 * BLOCKS, WHOLE_K)
    in_blocks = _within(block, BLOCKS, WHOLE_K)
    apart = _apart(block, PTX)
    for m in tl.static_range(ROWS):
        inputs = ()
        for w in tl.static_range(4):
            inputs = inputs + (tl.load(x + (m * 4 + w) * (2 * BLOCKS) + at, mask=in_lanes, other=0),)
        x_scale = tl.load(x_scales + m * BLOCKS + apart, mask=in_blocks, other=0.0)
        if EIGHTS:
            sums_at = 2 * (m * BLOCKS + apart)
            low_sum = tl.load(x_sums + sums_at, mask=in_blocks, other=0)
            high_sum = tl.load(x_sums + sums_at + 1, mask=in_blocks, other=0)
            middles = tl.reshape(tl.permute(tl.join(low_sum, high_sum), (0, 2, 1)), (words.shape[0], 1)) * -MIDDLE
            low = _dots(low_codes, inputs, 0, tl.broadcast_to(middles, (words.shape[0], words.shape[1])), PTX)
            first_word, second_word = _words_of_blocks(_dots(high_codes, inputs, 2, low, PTX).to(tl.float32))
            value = first_word * scale + second_word * second
        else:
            low_sum = tl.load(x_sums + 2 * m * BLOCKS + apart, mask=in_blocks, other=0)
            high_sum = tl.load(x_sums + (2 * m + 1) * BLOCKS + apart, mask=in_blocks, other=0)
            low = _dots(low_codes, inputs, 0, tl.zeros([words.shape[0], words.shape[1]], tl.int32), PTX)
            if SIXTEENS:
                high = _dots(high_codes, inputs, 2, tl.zeros([words.shape[0], words.shape[1]], tl.int32), PTX)
                low_value = (_of_blocks(low) - MIDDLE * low_sum).to(tl.float32)
                high_value = (_of_blocks(high) - MIDDLE * high_sum).to(tl.float32)
                if ZEROS:
                    low_value -= zero * low_sum.to(tl.float32)
                    high_value -= second_zero * high_sum.to(tl.float32)
                value = low_value * scale + high_value * second
            else:
                both = _dots(high_codes, inputs, 2, low, PTX)
                value = (_of_blocks(both) - MIDDLE * (low_sum + high_sum)).to(tl.float32)
                if ZEROS:
                    value -= zero * (low_sum + high_sum).to(tl.float32)
                value *= scale
        fresh = fresh + (sums[m] + value * x_scale,)
    return fresh


@triton.jit
def half_dots_kernel(
    x, x_scales, x_sums, codes, scales, zeros, row_scales, bias, out, columns, nothing, correction,
    BLOCKS: tl.constexpr, GROUPS: tl.constexpr, ROWS: tl.constexpr, FP4: tl.constexpr, SCALE: tl.constexpr,
    SIXTEENS: tl.constexpr, EIGHTS: tl.constexpr, ZEROS: tl.constexpr, HAS_ROW_SCALES: tl.constexpr,
    HAS_BIAS: tl.constexpr, BLOCK_N: tl.constexpr, STEP: tl.constexpr, WHOLE_N: tl.constexpr, WHOLE_K: tl.constexpr,
    PTX: tl.constexpr, CONVERTS: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """x: [ROWS, 4, BLOCKS, 2] 64-bit words. BLOCKS: of a row. STEP: blocks at once. nothing: 0, see _table

    SIXTEENS: the halves of a block are groups of their own; EIGHTS: its words are, and have no zero points.
    WHOLE_N, WHOLE_K: programs, or steps, end where the weight does.
    """
    EACH: tl.constexpr = 1 if SIXTEENS else BLOCKS // GROUPS
    first_n = tl.program_id(0) * BLOCK_N
    # In 64 bits, so that the columns' addresses differ by what the compiler knows.
    n = (first_n.to(tl.int64) + tl.arange(0, BLOCK_N).to(tl.int64))[None, :]
    if not WHOLE_N:
        n = tl.minimum(n, columns - 1)
    lanes = tl.arange(0, 2 * STEP)[:, None]
    base = codes + n * (2 * BLOCKS)
    following = tl.load(base + lanes, mask=_within(lanes, 2 * BLOCKS, WHOLE_K), other=0, eviction_policy="evict_first")
    blocks = tl.arange(0, STEP)[:, None]
    next_scale, next_zero, next_second, next_second_zero = _multipliers(
        scales, zeros, n, blocks, _within(blocks, BLOCKS, WHOLE_K), GROUPS, EACH, SCALE, SIXTEENS, ZEROS, PTX, CONVERTS
    )
    low_table = _table(0x0F0E0D0C, nothing, PTX)
    high_table = _table(0x090A0B0C, nothing, PTX)
    if CHAINED:
        let_next_start()
        wait_for_last()
    sums = ()
    for _ in tl.static_range(ROWS):
        sums = sums + (tl.zeros([STEP, BLOCK_N], tl.float32),)
    if FP4 and ROWS > 1:
        for start in range(0, BLOCKS, STEP):  # unrolled it would need more registers than there are
            words, scale, zero, second, second_zero = following, next_scale, next_zero, next_second, next_second_zero
            at = lanes + 2 * start
            block = blocks + start
            if STEP < BLOCKS:
                beyond = at + 2 * STEP
                following = tl.load(base + beyond, mask=beyond < 2 * BLOCKS, eviction_policy="evict_first")
                if GROUPS > 1:
                    later = block + STEP
                    next_scale, next_zero, next_second, next_second_zero = _multipliers(
                        scales, zeros, n, later, later < BLOCKS, GROUPS, EACH, SCALE, SIXTEENS, ZEROS, PTX, CONVERTS
                    )
            sums = _summed(
                sums, words, scale, zero, second, second_zero, x, x_scales, x_sums, at, block, low_table, high_table,
                BLOCKS, ROWS, FP4, SIXTEENS, EIGHTS, ZEROS, WHOLE_K, PTX,
            )  # fmt: skip
    else:
        for start in tl.static_range(0, BLOCKS, STEP):  # in a loop 4 to 6 % more time
            words, scale, zero, second, second_zero = following, next_scale, next_zero, next_second, next_second_zero
            if start + STEP < BLOCKS:
                beyond = lanes + 2 * (start + STEP)
                there = _within(beyond, 2 * BLOCKS, WHOLE_K)
                following = tl.load(base + beyond, mask=there, other=0, eviction_policy="evict_first")
                if GROUPS > 1:
                    later = blocks + (start + STEP)
                    next_scale, next_zero, next_second, next_second_zero = _multipliers(
                        scales, zeros, n, later, _within(later, BLOCKS, WHOLE_K), GROUPS, EACH, SCALE, SIXTEENS, ZEROS,
                        PTX, CONVERTS,
                    )  # fmt: skip
            sums = _summed(
                sums, words, scale, zero, second, second_zero, x, x_scales, x_sums, lanes + 2 * start, blocks + start,
                low_table, high_table, BLOCKS, ROWS, FP4, SIXTEENS, EIGHTS, ZEROS, WHOLE_K, PTX,
            )  # fmt: skip
    rows = first_n + tl.arange(0, BLOCK_N)
    in_n = rows < columns
    factor = tl.zeros([BLOCK_N], tl.float32) + correction
    if HAS_ROW_SCALES:
        factor *= tl.load(row_scales + rows, mask=in_n, other=0.0)
    added = tl.zeros([BLOCK_N], tl.float32)
    if HAS_BIAS:
        added = tl.load(bias + rows, mask=in_n, other=0.0).to(tl.float32)
    for m in tl.static_range(ROWS):
        result = tl.sum(sums[m], axis=0) * factor + added
        tl.store(out + m * columns + rows, result.to(out.dtype.element_ty), mask=in_n)
