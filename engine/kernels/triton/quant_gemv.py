"""A quantised weight times up to four rows: codes are read once, 32 bits at a time, and decoded in registers.

Codes become floats by moving bits, several a word, never by a conversion of each. Multipliers of a group are applied
to the group's sum, not to its numbers; what an offset adds comes from the sum of the inputs. A program owns some output
columns for all of K. Every row is summed in the same order whatever their number. Nothing is flushed to zero: the small
numbers of E4M3 and E2M1 pass through float16, which keeps them.
"""

# ruff: noqa: RUF005 - the kernel compiler knows no star in a tuple
# mypy: disable-error-code="assignment, var-annotated"

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from engine.kernels.triton.coded import BLOCK, HALF_BYTES, CodedWeight
from engine.kernels.triton.decode import (
    CODE_NUMBERS,
    CORRECTIONS,
    INPUTS,
    ONE_BITS,
    SCALE_NUMBERS,
    _added,
    _decoded,
    _high_half,
    _inputs,
    _low_half,
    _products,
    _scale,
    _with,
    input_words,
)
from engine.kernels.triton.device import speaks_ptx

MAX_ROWS = 4


@triton.jit
def column_sums(
    x, codes, scales, zeros, row_scales, first_n, last_n, row_words, groups, one,
    ROWS: tl.constexpr, INPUT: tl.constexpr, CODE: tl.constexpr, SCALE: tl.constexpr,
    GROUPED: tl.constexpr, SIXTEENS: tl.constexpr, HAS_ZEROS: tl.constexpr, HAS_PAIRS: tl.constexpr,
    HAS_ROW_SCALES: tl.constexpr, EVEN: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_G: tl.constexpr,
    WORDS: tl.constexpr, CORRECTION: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """Products of ROWS inputs with BLOCK_N rows of the weight from first_n on, a scalar each, rows of x within.

    Each is a tile [BLOCK_G, WORDS] of partial sums at first. last_n: the last row there is.
    WORDS: of a group, or of a block of K where all of a row is one group. SIXTEENS: two groups in a block of 32.
    HAS_PAIRS: zeros are pairs of a scale and a zero point.
    """
    lanes = tl.arange(0, BLOCK_G)[:, None] * WORDS + tl.arange(0, WORDS)[None, :]
    group_lanes = tl.arange(0, BLOCK_G)
    WHOLE: tl.constexpr = CODE == 1 or CODE == 2
    FOUR_BITS: tl.constexpr = CODE >= 2
    x_stride = row_words * (2 if FOUR_BITS else 1) * (4 if INPUT == 2 else 1)
    nothing = tl.zeros([BLOCK_G, WORDS], tl.float32)
    sums = ()
    plain = ()
    for _ in tl.static_range(ROWS * BLOCK_N):
        sums = sums + (nothing,)
    for _ in tl.static_range(ROWS):
        plain = plain + (nothing,)
    for start in range(0, row_words, BLOCK_G * WORDS):
        word = start + lanes
        in_k = word < row_words
        if EVEN:
            in_k = word >= 0
        # Two words or quads a thread at once, so that codes and inputs lie alike and meet without an exchange.
        pairs = tl.max_contiguous(tl.multiple_of(word, (1, 2)), (1, 2))
        quads = pairs
        if FOUR_BITS:
            quads = tl.max_contiguous(tl.multiple_of((word // 4) * 8 + word % 4, (1, 2)), (1, 2))
        group = start // WORDS + group_lanes
        if SIXTEENS:
            group = group * 2
        in_group = group < groups
        low_inputs = ()
        high_inputs = ()
        for m in tl.static_range(ROWS):
            row = x + m * x_stride
            low_inputs = low_inputs + (_inputs(row, quads, in_k, EVEN, INPUT, PTX),)
            if FOUR_BITS:
                high_inputs = high_inputs + (_inputs(row, quads + 4, in_k, EVEN, INPUT, PTX),)
            if CODE == 1 and not GROUPED:
                plain = _with(plain, m, plain[m] + _added(low_inputs[m]))
        fresh = ()
        for i in tl.static_range(BLOCK_N):
            n = tl.minimum(first_n + i, last_n).to(tl.int64)  # what is beyond is computed again, and not stored
            at = codes + n * row_words + pairs
            if EVEN:
                words = tl.load(at, eviction_policy="evict_first")
            else:
                words = tl.load(at, mask=in_k, other=0, eviction_policy="evict_first")
            low = _decoded(words, one, CODE, 0, PTX)
            if FOUR_BITS:
                high = _decoded(words, one, CODE, 1, PTX)
            if GROUPED:
                place = n * groups + group
                # What stands for nothing, as the fractions say it.
                middle = 1.5
                low_middle = 1.03125 if CODE == 2 else 1.5
                if HAS_PAIRS:
                    if EVEN:
                        pair = tl.load(zeros + place)
                    else:
                        pair = tl.load(zeros + place, mask=in_group, other=0)
                    scale = _low_half(pair)[:, None]
                    low_middle = _high_half(pair, PTX)[:, None]
                    middle = low_middle * 16.0 - 15.0
                else:
                    scale = _scale(scales, place, in_group, EVEN, SCALE)[:, None]
                    if HAS_ZEROS:
                        zero = tl.load(zeros + place, mask=in_group, other=0).to(tl.float32)
                        middle = (zero * (1.0 / 16.0) + 1.0)[:, None]
                        low_middle = (zero * (1.0 / 256.0) + 1.0)[:, None]
                if SIXTEENS:
                    if HAS_PAIRS:
                        pair = tl.load(zeros + place + 1, mask=in_group, other=0)
                        second_scale = _low_half(pair)[:, None]
                        middle = _high_half(pair, PTX)[:, None] * 16.0 - 15.0
                    else:
                        second_scale = _scale(scales, place + 1, in_group, EVEN, SCALE)[:, None]
                        if HAS_ZEROS:
                            zero = tl.load(zeros + place + 1, mask=in_group, other=0).to(tl.float32)
                            middle = (zero * (1.0 / 16.0) + 1.0)[:, None]
            for m in tl.static_range(ROWS):
                total = sums[i * ROWS + m]
                if not GROUPED:
                    total = _products(total, low, low_inputs[m])
                    if FOUR_BITS:
                        total = _products(total, high, high_inputs[m])
                else:
                    value = nothing
                    if WHOLE:
                        value -= _added(low_inputs[m]) * low_middle
                    value = _products(value, low, low_inputs[m])
                    if CODE == 2:
                        value *= 16.0
                    if SIXTEENS:
                        total += value * scale
                        value = nothing
                    if FOUR_BITS:
                        if WHOLE:
                            value -= _added(high_inputs[m]) * middle
                        value = _products(value, high, high_inputs[m])
                    if SIXTEENS:
                        total += value * second_scale
                    else:
                        total += value * scale
                fresh = fresh + (total,)
        sums = fresh
    values = ()
    for i in tl.static_range(BLOCK_N):
        n = tl.minimum(first_n + i, last_n).to(tl.int64)
        factor = CORRECTION
        if not GROUPED:
            factor = factor * tl.load(scales + n).to(tl.float32)
        if HAS_ROW_SCALES:
            factor = factor * tl.load(row_scales + n)
        for m in tl.static_range(ROWS):
            value = tl.sum(sums[i * ROWS + m])
            if CODE == 1 and not GROUPED:
                value -= 1.5 * tl.sum(plain[m])
            values = values + (value * factor,)
    return values


@triton.jit
def _quant_gemv_kernel(
    x, codes, scales, zeros, row_scales, bias, out, columns, row_words, groups, one,
    ROWS: tl.constexpr, INPUT: tl.constexpr, CODE: tl.constexpr, SCALE: tl.constexpr,
    GROUPED: tl.constexpr, SIXTEENS: tl.constexpr, HAS_ZEROS: tl.constexpr, HAS_PAIRS: tl.constexpr,
    HAS_ROW_SCALES: tl.constexpr, HAS_BIAS: tl.constexpr, EVEN: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_G: tl.constexpr, WORDS: tl.constexpr, CORRECTION: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    first_n = tl.program_id(0) * BLOCK_N
    values = column_sums(
        x, codes, scales, zeros, row_scales, first_n, columns - 1, row_words, groups, one,
        ROWS, INPUT, CODE, SCALE, GROUPED, SIXTEENS, HAS_ZEROS, HAS_PAIRS, HAS_ROW_SCALES, EVEN,
        BLOCK_N, BLOCK_G, WORDS, CORRECTION, PTX,
    )  # fmt: skip
    for i in tl.static_range(BLOCK_N):
        n = tl.minimum(first_n + i, columns - 1)
        for m in tl.static_range(ROWS):
            value = values[i * ROWS + m]
            if HAS_BIAS:
                value += tl.load(bias + n).to(tl.float32)
            tl.store(out + m * columns + n, value.to(out.dtype.element_ty), mask=first_n + i < columns)


@dataclass(frozen=True, slots=True)
class GemvTiles:
    block_n: int
    block_words: int
    warps: int


def quant_gemv(
    x: torch.Tensor, weight: CodedWeight, bias: torch.Tensor | None = None, tiles: GemvTiles | None = None
) -> torch.Tensor:
    """Shapes: x [M, K], M from 1 to 4, K a multiple of 4; weight (N, K), half bytes in 32s; bias [N] -> [M, N]"""
    assert weight.apart == BLOCK // 2, weight.apart
    rows, depth = x.shape
    columns = weight.shape[0]
    out = torch.empty(rows, columns, dtype=x.dtype, device=x.device)
    tiles = tiles or GemvTiles(4, 128, 2)
    row_words = depth // weight.numbers_a_byte // 4
    words = words_of(weight, tiles.block_words)
    blocks = max(1, tiles.block_words // words)
    none = weight.codes
    _quant_gemv_kernel[(triton.cdiv(columns, tiles.block_n),)](
        input_words(x), weight.codes.view(torch.int32), weight.scales,
        none if weight.zeros is None else weight.zeros if weight.pairs is None else weight.pairs,
        none if weight.row_scales is None else weight.row_scales,
        none if bias is None else bias, out, columns, row_words, weight.scales.shape[1], ONE_BITS,
        rows, INPUTS[x.dtype], *form_of(weight), bias is not None,
        row_words % (blocks * words) == 0, tiles.block_n, blocks, words, CORRECTIONS[CODE_NUMBERS[weight.code]],
        speaks_ptx(x.device), num_warps=tiles.warps,
    )  # fmt: skip
    return out


def form_of(weight: CodedWeight) -> tuple[int, int, bool, bool, bool, bool, bool]:
    """CODE to HAS_ROW_SCALES of column_sums."""
    grouped = weight.scales.shape[1] > 1 or weight.code == "int4" or weight.scale_code != "float"
    sixteens = weight.code in HALF_BYTES and weight.group == 16
    zeros, pairs = weight.zeros is not None, weight.pairs is not None
    code, scale = CODE_NUMBERS[weight.code], SCALE_NUMBERS[weight.scale_code]
    return code, scale, grouped, sixteens, zeros, pairs, weight.row_scales is not None


def words_of(weight: CodedWeight, block_words: int) -> int:
    """WORDS of column_sums."""
    _, _, grouped, sixteens, *_ = form_of(weight)
    if not grouped:
        return block_words
    return 4 if sixteens else weight.group // weight.numbers_a_byte // 4
