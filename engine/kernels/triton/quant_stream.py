"""A quantised weight times up to four rows, by programs that stay: inputs are decoded once and kept in registers.

Each program holds all of K and takes some columns after others, so that the next ones' codes are on their way while
these are decoded. The products of a column are summed in the same order whatever the number of rows.
"""

# ruff: noqa: RUF005 - the kernel compiler knows no star in a tuple
# mypy: disable-error-code="assignment, var-annotated"

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from engine.kernels.triton.coded import CodedWeight
from engine.kernels.triton.decode import (
    CODE_NUMBERS,
    CORRECTIONS,
    INPUTS,
    ONE_BITS,
    _added,
    _decoded,
    _high_half,
    _inputs,
    _low_half,
    _products,
    _scale,
)
from engine.kernels.triton.device import speaks_ptx
from engine.kernels.triton.quant_gemm import GemmTiles, gemm_tiles, quant_gemm
from engine.kernels.triton.quant_gemv import GemvTiles, form_of, quant_gemv, words_of
from engine.kernels.triton.tuned import few_key, tuned


@triton.jit
def _stream_kernel(
    x, codes, scales, zeros, row_scales, bias, out, columns, row_words, groups, one,
    ROWS: tl.constexpr, INPUT: tl.constexpr, CODE: tl.constexpr, SCALE: tl.constexpr,
    GROUPED: tl.constexpr, SIXTEENS: tl.constexpr, HAS_ZEROS: tl.constexpr, HAS_PAIRS: tl.constexpr,
    HAS_ROW_SCALES: tl.constexpr, HAS_BIAS: tl.constexpr, EVEN: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_G: tl.constexpr, WORDS: tl.constexpr, CORRECTION: tl.constexpr, PTX: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The arguments are those of column_sums; BLOCK_G * WORDS covers a row. BLOCK_N: 1, 2 or 4."""
    WHOLE: tl.constexpr = CODE == 1 or CODE == 2
    FOUR_BITS: tl.constexpr = CODE >= 2
    word = tl.arange(0, BLOCK_G)[:, None] * WORDS + tl.arange(0, WORDS)[None, :]
    in_k = word < row_words
    quads = word
    if FOUR_BITS:
        quads = (word // 4) * 8 + word % 4
    group = tl.arange(0, BLOCK_G)
    if SIXTEENS:
        group = group * 2
    in_group = group < groups
    x_stride = row_words * (2 if FOUR_BITS else 1) * (4 if INPUT == 2 else 1)
    low_inputs = ()
    high_inputs = ()
    low_added = ()
    high_added = ()
    for m in tl.static_range(ROWS):
        row = x + m * x_stride
        low = _inputs(row, quads, in_k, EVEN, INPUT, PTX)
        low_inputs = low_inputs + (low,)
        if WHOLE:
            low_added = low_added + (_added(low),)
        if FOUR_BITS:
            high = _inputs(row, quads + 4, in_k, EVEN, INPUT, PTX)
            high_inputs = high_inputs + (high,)
            if WHOLE:
                high_added = high_added + (_added(high),)
    for tile in tl.range(tl.program_id(0), tl.cdiv(columns, BLOCK_N), tl.num_programs(0), num_stages=STAGES):
        values = ()
        for i in tl.static_range(BLOCK_N):
            n = tl.minimum(tile * BLOCK_N + i, columns - 1).to(tl.int64)
            at = codes + n * row_words + word
            if EVEN:
                words = tl.load(at, eviction_policy="evict_first")
            else:
                words = tl.load(at, mask=in_k, other=0, eviction_policy="evict_first")
            low_numbers = _decoded(words, one, CODE, 0, PTX)
            if FOUR_BITS:
                high_numbers = _decoded(words, one, CODE, 1, PTX)
            middle = 1.5
            low_middle = 1.03125 if CODE == 2 else 1.5
            if GROUPED:
                place = n * groups + group
                if HAS_PAIRS:
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
                value = tl.zeros([BLOCK_G, WORDS], tl.float32)
                if WHOLE:
                    value -= low_added[m] * low_middle
                value = _products(value, low_numbers, low_inputs[m])
                if CODE == 2:
                    value *= 16.0
                total = value
                if SIXTEENS:
                    total = value * scale
                    value = tl.zeros([BLOCK_G, WORDS], tl.float32)
                if FOUR_BITS:
                    if WHOLE:
                        value -= high_added[m] * middle
                    value = _products(value, high_numbers, high_inputs[m])
                if SIXTEENS:
                    total += value * second_scale
                elif GROUPED:
                    total = value * scale
                else:
                    total = value
                values = values + (total,)
        for m in tl.static_range(ROWS):
            if BLOCK_N == 4:
                first = tl.join(values[m], values[2 * ROWS + m])
                both = tl.join(first, tl.join(values[ROWS + m], values[3 * ROWS + m]))
                every = tl.reshape(both, [BLOCK_G * WORDS, 4])
            elif BLOCK_N == 2:
                every = tl.reshape(tl.join(values[m], values[ROWS + m]), [BLOCK_G * WORDS, 2])
            else:
                every = tl.reshape(values[m], [BLOCK_G * WORDS, 1])
            result = tl.sum(every, axis=0) * CORRECTION
            n = tile * BLOCK_N + tl.arange(0, BLOCK_N)
            in_n = n < columns
            if not GROUPED:
                result *= tl.load(scales + n, mask=in_n, other=0.0).to(tl.float32)
            if HAS_ROW_SCALES:
                result *= tl.load(row_scales + n, mask=in_n, other=0.0)
            if HAS_BIAS:
                result += tl.load(bias + n, mask=in_n, other=0.0).to(tl.float32)
            tl.store(out + m * columns + n, result.to(out.dtype.element_ty), mask=in_n)


@dataclass(frozen=True, slots=True)
class StreamTiles:
    block_n: int
    warps: int
    stages: int
    programs: int


def quant_stream(
    x: torch.Tensor, weight: CodedWeight, bias: torch.Tensor | None = None, tiles: StreamTiles | None = None
) -> torch.Tensor:
    """Shapes: x [M, K], M from 1 to 4, K a multiple of 4; weight (N, K); bias [N] -> [M, N]"""
    rows, depth = x.shape
    columns = weight.shape[0]
    out = torch.empty(rows, columns, dtype=x.dtype, device=x.device)
    tiles = tiles or StreamTiles(4, 4, 3, 528)
    row_words = depth // weight.numbers_a_byte // 4
    cover = triton.next_power_of_2(row_words)
    words = words_of(weight, cover)
    x = x.contiguous()
    none = weight.codes
    _stream_kernel[(min(tiles.programs, triton.cdiv(columns, tiles.block_n)),)](
        x if x.dtype == torch.float32 else x.view(torch.int64),
        weight.codes.view(torch.int32), weight.scales,
        none if weight.zeros is None else weight.zeros if weight.pairs is None else weight.pairs,
        none if weight.row_scales is None else weight.row_scales,
        none if bias is None else bias, out, columns, row_words, weight.scales.shape[1], ONE_BITS,
        rows, INPUTS[x.dtype], *form_of(weight), bias is not None,
        row_words == cover, tiles.block_n, cover // words, words, CORRECTIONS[CODE_NUMBERS[weight.code]],
        speaks_ptx(x.device), tiles.stages, num_warps=tiles.warps,
    )  # fmt: skip
    return out


def few_rows(
    x: torch.Tensor,
    weight: CodedWeight,
    bias: torch.Tensor | None = None,
    tiles: GemvTiles | StreamTiles | GemmTiles | None = None,
) -> torch.Tensor:
    """The kernel that is the fastest for this shape. Shapes: as quant_stream"""
    tiles = tiles or gemv_tiles(weight, x.shape[0], x.device)
    if isinstance(tiles, StreamTiles):
        return quant_stream(x, weight, bias, tiles)
    if isinstance(tiles, GemmTiles):
        return quant_gemm(x, weight, bias, tiles)
    return quant_gemv(x, weight, bias, tiles)


KERNELS: dict[str, type[GemvTiles] | type[StreamTiles] | type[GemmTiles]] = {
    "columns": GemvTiles,
    "stream": StreamTiles,
    "tiles": GemmTiles,
}


def gemv_tiles(weight: CodedWeight, rows: int, device: torch.device) -> GemvTiles | StreamTiles | GemmTiles:
    """What was measured for this shape, else what is usual for such."""
    columns, depth = weight.shape
    found = tuned(device, few_key(weight.code, rows, columns, depth))
    if found is not None:
        return KERNELS[found[0]](*found[1])
    if rows > 2 and weight.code != "fp4":
        return gemm_tiles(rows)
    if rows > 1 or weight.code == "fp4":
        return GemvTiles(4, 128, 2)
    if columns > 8192 and depth <= 8192:
        return StreamTiles(4, 4, 3, 528)
    return GemvTiles(4, 256, 2) if weight.code in ("int8", "int4") else GemvTiles(2, 512, 4)
