"""A weight of E4M3 codes times one or two rows, exact activations: bound by reading the codes once.

Codes become floats by a conversion of two where the device has it, else by moving bits through float16, which keeps the
small ones. The first codes are asked for before the rows are there. A program owns some output columns for all of K.
Every row is summed in the same order whatever their number. Source: OFP8 rev 1.0
"""

# mypy: disable-error-code="assignment, var-annotated"
# ruff: noqa: RUF005 - the kernel compiler knows no star in a tuple

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from engine.kernels.triton.chained import chains, launch, let_next_start, wait_for_last
from engine.kernels.triton.coded import CodedWeight
from engine.kernels.triton.decode import INPUTS, _decoded, _inputs, input_words
from engine.kernels.triton.device import converts_fp8, speaks_ptx
from engine.kernels.triton.layouts import _apart, _within
from engine.kernels.triton.tuned import few_key, tuned

MAX_ROWS = 2  # each further row costs as much again as a third of the first one: tiles of rows take less for three
MORE_ROWS_N = 4  # columns of a program for more than one row, at most
SHIFTED = 256.0  # float16 made by moving an E4M3's bits lacks the difference of the exponents' biases


@triton.jit
def _converted(words):
    """The first four numbers of each 64-bit word and the last four, as the device converts them."""
    return tl.inline_asm_elementwise(
        """{ .reg .b16 p, q, low, high; .reg .b32 a, b, u;
        mov.b64 {a, b}, $8;
        mov.b32 {p, q}, a;
        cvt.rn.f16x2.e4m3x2 u, p;
        mov.b32 {low, high}, u;
        cvt.f32.f16 $0, low;
        cvt.f32.f16 $1, high;
        cvt.rn.f16x2.e4m3x2 u, q;
        mov.b32 {low, high}, u;
        cvt.f32.f16 $2, low;
        cvt.f32.f16 $3, high;
        mov.b32 {p, q}, b;
        cvt.rn.f16x2.e4m3x2 u, p;
        mov.b32 {low, high}, u;
        cvt.f32.f16 $4, low;
        cvt.f32.f16 $5, high;
        cvt.rn.f16x2.e4m3x2 u, q;
        mov.b32 {low, high}, u;
        cvt.f32.f16 $6, low;
        cvt.f32.f16 $7, high; }""",
        "=f,=f,=f,=f,=f,=f,=f,=f,l", [words],
        dtype=(tl.float32, tl.float32, tl.float32, tl.float32, tl.float32, tl.float32, tl.float32, tl.float32),
        is_pure=True, pack=1,
    )  # fmt: skip


@triton.jit
def _numbers(words, CONVERTS: tl.constexpr, PTX: tl.constexpr):
    """The eight numbers of each word."""
    if CONVERTS:
        numbers = _converted(words)
    else:
        numbers = _decoded(words.to(tl.int32), 0, 0, 0, PTX) + _decoded((words >> 32).to(tl.int32), 0, 0, 0, PTX)
    return numbers


@triton.jit
def _fp8_rows_kernel(
    x, codes, scales, bias, out, columns, correction,
    WORDS: tl.constexpr, GROUPS: tl.constexpr, ROWS: tl.constexpr, INPUT: tl.constexpr, HAS_BIAS: tl.constexpr,
    BLOCK_N: tl.constexpr, STEP: tl.constexpr, WHOLE_N: tl.constexpr, WHOLE_K: tl.constexpr,
    CONVERTS: tl.constexpr, PTX: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """WORDS: of eight codes, of a row. STEP: words at once. GROUPS: multipliers a row."""
    EACH: tl.constexpr = WORDS // GROUPS
    QUADS: tl.constexpr = 2 * WORDS  # of a row of x
    first_n = tl.program_id(0) * BLOCK_N
    n = (first_n.to(tl.int64) + tl.arange(0, BLOCK_N).to(tl.int64))[None, :]
    if not WHOLE_N:
        n = tl.minimum(n, columns - 1)
    steps = tl.arange(0, STEP)[:, None]
    # A thread has one word of each column at a time, and reads what it needs of x itself.
    base = codes + n * WORDS
    following = tl.load(
        base + _apart(steps, PTX), mask=_within(steps, WORDS, WHOLE_K), other=0, eviction_policy="evict_first"
    )
    if CHAINED:
        let_next_start()
        wait_for_last()
    sums = ()
    for _ in tl.static_range(ROWS):
        sums = sums + (tl.zeros([STEP, BLOCK_N], tl.float32),)
    for start in range(0, WORDS, STEP):  # not unrolled: the code of a long row would not stay in the cache
        words = following
        at = steps + start
        later = at + STEP
        following = tl.load(base + _apart(later, PTX), mask=later < WORDS, other=0, eviction_policy="evict_first")
        in_k = _within(at, WORDS, WHOLE_K)
        if GROUPS > 1:
            scale = tl.load(scales + n * GROUPS + _apart(at // EACH, PTX), mask=in_k, other=0.0).to(tl.float32)
        numbers = _numbers(words, CONVERTS, PTX)
        quads = _apart(at, PTX) * 2
        fresh = ()
        for m in tl.static_range(ROWS):
            base_x = x + m * QUADS * (4 if INPUT == 2 else 1)
            inputs = _inputs(base_x, quads, in_k, False, INPUT, PTX)
            inputs = inputs + _inputs(base_x, quads + 1, in_k, False, INPUT, PTX)
            total = sums[m]
            if GROUPS > 1:
                total = tl.zeros([STEP, BLOCK_N], tl.float32)
            for place in tl.static_range(8):
                total += numbers[place] * inputs[place]
            if GROUPS > 1:
                total = sums[m] + total * scale
            fresh = fresh + (total,)
        sums = fresh
    rows = first_n + tl.arange(0, BLOCK_N)
    in_n = rows < columns
    factor = tl.zeros([BLOCK_N], tl.float32) + correction
    if GROUPS == 1:
        factor *= tl.load(scales + rows, mask=in_n, other=0.0).to(tl.float32)
    added = tl.zeros([BLOCK_N], tl.float32)
    if HAS_BIAS:
        added = tl.load(bias + rows, mask=in_n, other=0.0).to(tl.float32)
    for m in tl.static_range(ROWS):
        result = tl.sum(sums[m], axis=0) * factor + added
        tl.store(out + m * columns + rows, result.to(out.dtype.element_ty), mask=in_n)


@dataclass(frozen=True, slots=True)
class Fp8Tiles:
    block_n: int
    quads: int  # of a step
    warps: int


def takes(weight: CodedWeight) -> bool:
    """Whether the kernel reads these codes and multipliers."""
    return weight.code == "fp8" and weight.group % 8 == 0 and weight.row_scales is None


def fp8_tiles(weight: CodedWeight, device: torch.device) -> Fp8Tiles:
    """What was measured for this shape with one row, else what is usual for such."""
    columns, depth = weight.shape
    found = tuned(device, few_key(weight.code, 1, columns, depth))
    if found is not None and found[0] == "fp8":
        return Fp8Tiles(*found[1])
    return Fp8Tiles(8 if columns > 4096 else 4, 512, 8)


def fp8_rows(
    x: torch.Tensor,
    weight: CodedWeight,
    bias: torch.Tensor | None = None,
    tiles: Fp8Tiles | None = None,
    *,
    by_bits: bool = False,
) -> torch.Tensor:
    """by_bits: also where the device converts.

    Shapes: x [M, K], M 1 or 2; weight (N, K), as takes() wants; bias [N] -> [M, N]
    """
    rows, depth = x.shape
    columns = weight.shape[0]
    out = torch.empty(rows, columns, dtype=x.dtype, device=x.device)
    assert rows <= MAX_ROWS, rows
    tiles = tiles or fp8_tiles(weight, x.device)
    block_n = tiles.block_n if rows == 1 else min(tiles.block_n, MORE_ROWS_N)  # K is shared out alike with either
    words = depth // 8
    step = min(tiles.quads // 2, triton.next_power_of_2(words))
    converts = converts_fp8(x.device) and not by_bits
    _fp8_rows_kernel[(triton.cdiv(columns, block_n),)](
        input_words(x), weight.codes.view(torch.int64), weight.scales,
        weight.codes if bias is None else bias, out, columns, 1.0 if converts else SHIFTED,
        words, int(weight.scales.shape[1]), rows, INPUTS[x.dtype], bias is not None,
        block_n, step, columns % block_n == 0, words % step == 0, converts, speaks_ptx(x.device), chains(x.device),
        num_warps=tiles.warps, **launch(x.device),
    )  # fmt: skip
    return out
