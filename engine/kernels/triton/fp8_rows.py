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
from engine.kernels.triton.tuned import few_key, tuned

MAX_ROWS = 2  # more need more registers than there are, and take four times as long
TWO_ROWS_N = 4  # columns of a program then, at most
SHIFTED = 256.0  # float16 made by moving an E4M3's bits lacks the difference of the exponents' biases


@triton.jit
def _converted(words):
    """The four numbers of each word, as the device converts them."""
    return tl.inline_asm_elementwise(
        """{ .reg .b16 p, q, low, high; .reg .b32 u, v;
        mov.b32 {p, q}, $4;
        cvt.rn.f16x2.e4m3x2 u, p;
        cvt.rn.f16x2.e4m3x2 v, q;
        mov.b32 {low, high}, u;
        cvt.f32.f16 $0, low;
        cvt.f32.f16 $1, high;
        mov.b32 {low, high}, v;
        cvt.f32.f16 $2, low;
        cvt.f32.f16 $3, high; }""",
        "=f,=f,=f,=f,r", [words], dtype=(tl.float32, tl.float32, tl.float32, tl.float32), is_pure=True, pack=1,
    )  # fmt: skip


@triton.jit
def _fp8_rows_kernel(
    x, codes, scales, bias, out, columns, correction,
    QUADS: tl.constexpr, GROUPS: tl.constexpr, ROWS: tl.constexpr, INPUT: tl.constexpr, HAS_BIAS: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_Q: tl.constexpr, CONVERTS: tl.constexpr, PTX: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """QUADS: words of four codes a row. GROUPS: multipliers a row."""
    first_n = tl.program_id(0) * BLOCK_N
    n = tl.minimum(first_n + tl.arange(0, BLOCK_N), columns - 1).to(tl.int64)
    lanes = tl.arange(0, BLOCK_Q)
    EVEN: tl.constexpr = QUADS % BLOCK_Q == 0
    GROUP: tl.constexpr = QUADS // GROUPS
    base = codes + n[:, None] * QUADS
    following = tl.load(base + lanes[None, :], mask=(lanes < QUADS)[None, :], other=0, eviction_policy="evict_first")
    if CHAINED:
        let_next_start()
        wait_for_last()
    sums = ()
    for _ in tl.static_range(ROWS):
        sums = sums + (tl.zeros([BLOCK_N, BLOCK_Q], tl.float32),)
    for start in range(0, QUADS, BLOCK_Q):
        words = following
        at = start + lanes
        beyond = at + BLOCK_Q < QUADS
        following = tl.load(
            base + (at + BLOCK_Q)[None, :], mask=beyond[None, :], other=0, eviction_policy="evict_first"
        )
        in_k = at < QUADS
        if GROUPS > 1:
            place = n[:, None] * GROUPS + (at // GROUP)[None, :]
            scale = tl.load(scales + place, mask=in_k[None, :], other=0.0).to(tl.float32)
        if CONVERTS:
            first, second, third, fourth = _converted(words)
        else:
            first, second, third, fourth = _decoded(words, 0, 0, 0, PTX)
        fresh = ()
        for m in tl.static_range(ROWS):
            a, b, c, d = _inputs(x + m * QUADS * (4 if INPUT == 2 else 1), at, in_k, EVEN, INPUT, PTX)
            total = sums[m]
            if GROUPS > 1:
                total = tl.zeros([BLOCK_N, BLOCK_Q], tl.float32)
            total += first * a[None, :]
            total += second * b[None, :]
            total += third * c[None, :]
            total += fourth * d[None, :]
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
        result = tl.sum(sums[m], axis=1) * factor + added
        tl.store(out + m * columns + rows, result.to(out.dtype.element_ty), mask=in_n)


@dataclass(frozen=True, slots=True)
class Fp8Tiles:
    block_n: int
    quads: int  # of a step
    warps: int


def takes(weight: CodedWeight) -> bool:
    """Whether the kernel reads these codes and multipliers."""
    return weight.code == "fp8" and weight.group % 4 == 0 and weight.row_scales is None


def fp8_tiles(weight: CodedWeight, device: torch.device) -> Fp8Tiles:
    """What was measured for this shape with one row, else what is usual for such."""
    columns, depth = weight.shape
    found = tuned(device, few_key(weight.code, 1, columns, depth))
    if found is not None and found[0] == "fp8":
        return Fp8Tiles(*found[1])
    return Fp8Tiles(8, 512, 4) if columns >= 16384 else Fp8Tiles(8, 256, 4)


def fp8_rows(
    x: torch.Tensor,
    weight: CodedWeight,
    bias: torch.Tensor | None = None,
    tiles: Fp8Tiles | None = None,
    *,
    by_bits: bool = False,
) -> torch.Tensor:
    """by_bits: also where the device converts.

    Shapes: x [M, K], M 1 or 2, K a multiple of 4; weight (N, K), as takes() wants; bias [N] -> [M, N]
    """
    rows, depth = x.shape
    columns = weight.shape[0]
    out = torch.empty(rows, columns, dtype=x.dtype, device=x.device)
    assert rows <= MAX_ROWS, rows
    tiles = tiles or fp8_tiles(weight, x.device)
    block_n = tiles.block_n if rows == 1 else min(tiles.block_n, TWO_ROWS_N)  # K is shared out alike with either
    quads = depth // 4
    converts = converts_fp8(x.device) and not by_bits
    _fp8_rows_kernel[(triton.cdiv(columns, block_n),)](
        input_words(x), weight.codes.view(torch.int32), weight.scales,
        weight.codes if bias is None else bias, out, columns, 1.0 if converts else SHIFTED,
        quads, int(weight.scales.shape[1]), rows, INPUTS[x.dtype], bias is not None,
        block_n, min(tiles.quads, triton.next_power_of_2(quads)), converts, speaks_ptx(x.device),
        chains(x.device), num_warps=tiles.warps, **launch(x.device),
    )  # fmt: skip
    return out
