"""A weight of whole-number codes times up to four rows: products of integers, which the device does two at a time.

Rows come as int16 (fine_rows.py), so that a group's product is exact until its multiplier. The first codes are asked
for before the rows are there. A program owns some output columns for all of K. Every row is summed in the same order
whatever their number. The kernel here is that of bytes, half_dots.py has that of half bytes.
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
from engine.kernels.triton.decode import _scale
from engine.kernels.triton.device import converts_fp8, speaks_ptx
from engine.kernels.triton.fine_rows import CHUNK, FineForm, FineRows
from engine.kernels.triton.half_dots import half_dots_kernel
from engine.kernels.triton.quant_gemv import form_of
from engine.kernels.triton.tuned import few_key, tuned

MAX_ROWS = 4
MORE_ROWS_N = 4  # columns of a program for more than one row of E2M1, at most: K is shared out alike with either
WHOLE = ("int8", "int4", "fp4")  # codes that are whole numbers, or halves of such


@triton.jit
def _of_word(word, place: tl.constexpr):
    """The int16 in a place of a 64-bit word."""
    return ((word << (48 - 16 * place)) >> 48).to(tl.int32)


@triton.jit
def _dots(codes, inputs, PTX: tl.constexpr):
    """Products of the eight bytes of each 64-bit word of codes, int32."""
    if PTX:
        total = tl.inline_asm_elementwise(
            """{ .reg .b32 a, b, p, q, s;
            mov.b64 {a, b}, $1;
            mov.b64 {p, q}, $2;
            dp2a.lo.s32.s32 s, p, a, 0;
            dp2a.hi.s32.s32 s, q, a, s;
            mov.b64 {p, q}, $3;
            dp2a.lo.s32.s32 s, p, b, s;
            dp2a.hi.s32.s32 $0, q, b, s; }""",
            "=r,l,l,l", [codes, inputs[0], inputs[1]], dtype=tl.int32, is_pure=True, pack=1,
        )  # fmt: skip
    else:
        total = tl.zeros_like(codes).to(tl.int32)
        for place in tl.static_range(8):
            byte = ((codes << (56 - 8 * place)) >> 56).to(tl.int32)
            total += byte * _of_word(inputs[place // 4], place % 4)
    return total


@triton.jit
def _multipliers(scales, zeros, at, mask, EVEN: tl.constexpr, HAS_ZEROS: tl.constexpr):
    """(multiplier, what stands for nothing) of each group."""
    scale = _scale(scales, at, mask, EVEN, 0)
    zero = tl.zeros_like(scale)
    if HAS_ZEROS:
        zero = tl.load(zeros + at, mask=mask, other=0).to(tl.float32) - 128.0
    return scale, zero


@triton.jit
def _dots_kernel(
    x, x_scales, x_sums, codes, scales, zeros, row_scales, bias, out, columns,
    LANES: tl.constexpr, GROUPS: tl.constexpr, ROWS: tl.constexpr, HAS_ZEROS: tl.constexpr,
    HAS_ROW_SCALES: tl.constexpr, HAS_BIAS: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_G: tl.constexpr, WIDTH: tl.constexpr, PTX: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """x: [ROWS, 2, LANES] 64-bit words. WIDTH: lanes of a group, or of a step where a row is one group."""
    STEP: tl.constexpr = BLOCK_G * WIDTH
    EVEN: tl.constexpr = LANES % STEP == 0
    CHUNKS: tl.constexpr = LANES // 4
    first_n = tl.program_id(0) * BLOCK_N
    n = tl.minimum(first_n + tl.arange(0, BLOCK_N), columns - 1).to(tl.int64)[:, None, None]
    group_lane = tl.arange(0, BLOCK_G)[None, :, None]
    lane = group_lane * WIDTH + tl.arange(0, WIDTH)[None, None, :]
    base = codes + n * LANES
    following = tl.load(base + lane, mask=lane < LANES, other=0, eviction_policy="evict_first")
    place = n * GROUPS
    if GROUPS > 1:
        place = n * GROUPS + group_lane
    next_scale, next_zero = _multipliers(scales, zeros, place, (place - n * GROUPS) < GROUPS, EVEN, HAS_ZEROS)
    if CHAINED:
        let_next_start()
        wait_for_last()
    sums = ()
    for _ in tl.static_range(ROWS):
        sums = sums + (tl.zeros([BLOCK_N, BLOCK_G, WIDTH], tl.float32),)
    for start in tl.static_range(0, LANES, STEP):
        words, scale, zero = following, next_scale, next_zero
        at = start + lane
        in_k = at < LANES
        if start + STEP < LANES:
            beyond = at + STEP < LANES
            following = tl.load(base + at + STEP, mask=beyond, other=0, eviction_policy="evict_first")
            if GROUPS > 1:
                place = n * GROUPS + ((start + STEP) // WIDTH + group_lane)
                in_group = (place - n * GROUPS) < GROUPS
                next_scale, next_zero = _multipliers(scales, zeros, place, in_group, EVEN, HAS_ZEROS)
        fresh = ()
        for m in tl.static_range(ROWS):
            inputs = ()
            for w in tl.static_range(2):
                inputs = inputs + (tl.load(x + (m * 2 + w) * LANES + at, mask=in_k, other=0),)
            x_scale = tl.load(x_scales + m * CHUNKS + at // 4, mask=in_k, other=0.0)
            value = _dots(words, inputs, PTX).to(tl.float32)
            if HAS_ZEROS:
                value -= zero * tl.load(x_sums + m * LANES + at, mask=in_k, other=0).to(tl.float32)
            fresh = fresh + (sums[m] + value * x_scale * scale,)
        sums = fresh
    rows = first_n + tl.arange(0, BLOCK_N)
    in_n = rows < columns
    factor = tl.full([BLOCK_N], 1.0, tl.float32)
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
    return weight.code in WHOLE and weight.shape[1] % CHUNK == 0


def form(weight: CodedWeight) -> FineForm:
    """The rows that quant_dots reads with a weight that takes() takes."""
    if weight.code not in HALF_BYTES:
        return FineForm(8)
    eights = weight.apart == 8
    return FineForm(16, mingled=eights or (weight.code == "fp4" and weight.group >= CHUNK), eights=eights)


def kind_of(weight: CodedWeight) -> str:
    """What tiles are measured for: a code, or what else its multipliers make of it."""
    return "fp4_mx" if weight.code == "fp4" and weight.scale_code == "e8m0" else weight.code


def dots_tiles(weight: CodedWeight, device: torch.device) -> DotsTiles:
    """What was measured for this shape with one row, else what is usual for such."""
    columns, depth = weight.shape
    found = tuned(device, few_key(kind_of(weight), 1, columns, depth))
    if found is not None and found[0] == "dots":
        return DotsTiles(*found[1])
    if weight.code not in HALF_BYTES:
        return DotsTiles(4, 64, 1) if columns >= 16384 else DotsTiles(4, 256 if depth <= 8192 else 128, 2)
    if columns >= 16384:
        return DotsTiles(4, 128, 2)
    return DotsTiles(4, 128, 1) if columns > 4096 else DotsTiles(4, 256, 2 if depth <= 8192 else 4)


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
    assert rows.form == form(weight), (rows.form, weight.code)
    assert rows.count <= MAX_ROWS, rows.count
    out = torch.empty(rows.count, columns, dtype=dtype, device=device)
    tiles = tiles or dots_tiles(weight, device)
    block_n = min(tiles.block_n, MORE_ROWS_N) if weight.code == "fp4" and rows.count > 1 else tiles.block_n
    _, scale, _, sixteens, has_zeros, has_pairs, has_row_scales = form_of(weight)
    groups = int(weight.scales.shape[1])
    none = weight.codes
    zeros = none if weight.zeros is None else weight.zeros if weight.pairs is None else weight.pairs
    inputs = (rows.codes.view(torch.int64), rows.scales, rows.sums, weight.codes.view(torch.int64), weight.scales,
              zeros, none if weight.row_scales is None else weight.row_scales, none if bias is None else bias, out,
              columns)  # fmt: skip
    grid = (triton.cdiv(columns, block_n),)
    lanes = depth // rows.form.lane
    step = min(tiles.lanes, triton.next_power_of_2(lanes))
    options = {"num_warps": tiles.warps, **launch(device)}
    ptx, converts, chained = speaks_ptx(device), converts_fp8(device), chains(device)
    if weight.code in HALF_BYTES:
        half_dots_kernel[grid](
            *inputs, 0, 0.5 if weight.code == "fp4" else 1.0,
            depth // CHUNK, groups, rows.count, weight.code == "fp4", scale, sixteens, weight.apart == 8,
            2 if has_pairs else int(has_zeros), has_row_scales, bias is not None,
            block_n, max(1, step // 2), columns % block_n == 0, lanes % step == 0, ptx, converts, chained,
            **options,
        )  # fmt: skip
        return out
    width = step if groups == 1 else weight.group // rows.form.lane
    _dots_kernel[grid](
        *inputs, lanes, groups, rows.count, has_zeros, has_row_scales, bias is not None,
        tiles.block_n, max(1, step // width), width, ptx, chained, **options,
    )  # fmt: skip
    return out
