"""Codes of activations times codes of weights on eight-bit matrix units, in int8 or E4M3, with outlier columns beside.

Whole numbers are summed exactly in int32. The loop over K goes on over the outlier columns, in 16 bits, into the same
accumulators once they are scaled: one kernel, one write of the output. Scales are a row's, or of blocks of 128.
Where the device copies tiles by descriptors, threads compute no addresses: a product takes 5 to 10 % less.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from engine.kernels.triton.device import MAX_LOCKS, locks_of
from engine.kernels.triton.scaled_tiles import LEAST_PART, PipeTiles, ScaledTiles, usual_tiles

try:
    from engine.kernels.triton.int8_pipeline import pipelined
except ImportError:  # a Triton without the means: usual_tiles asks for it nowhere then
    pipelined = None  # type: ignore[assignment]


@triton.jit
def _scaled_gemm_kernel(
    a, w, a_scales, w_scales, a_outliers, w_outliers, bias, out, parts, locks, rows, columns, depth, undivided,
    a_row, a_block, w_row, w_block,
    WHOLE: tl.constexpr, BLOCKS: tl.constexpr, NUM_OUTLIERS: tl.constexpr, HAS_BIAS: tl.constexpr,
    EVEN: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    BLOCK_O: tl.constexpr, GROUP_M: tl.constexpr, SPLITS: tl.constexpr, DESCRIBED: tl.constexpr,
    TURNED: tl.constexpr,
):  # fmt: skip
    """BLOCKS: whether scales are of blocks of BLOCK_K, [rows, K / BLOCK_K] of either side, else of rows.

    undivided: tiles that one program does; the K of those after them is shared out among SPLITS programs each.
    TURNED: a is the weight: its rows are the output's columns, and have the bias
    a_row, a_block, w_row, w_block: from a row's scale of blocks to the next row's, and to the next block's

    DESCRIBED: a and w are descriptors of tiles, [BLOCK_M, BLOCK_K] and [BLOCK_N, BLOCK_K]; what lies outside is 0
    """
    row_tiles = tl.cdiv(rows, BLOCK_M)
    column_tiles = tl.cdiv(columns, BLOCK_N)
    # Neighbouring programs share tiles of both sides in the cache.
    program = tl.program_id(0)
    tile = program
    split = 0
    if SPLITS > 1:
        beyond = tl.maximum(program - undivided, 0)
        tile = tl.minimum(program, undivided) + beyond // SPLITS
        split = beyond % SPLITS
    in_group = GROUP_M * column_tiles
    first_row = tile // in_group * GROUP_M
    height = tl.minimum(row_tiles - first_row, GROUP_M)
    first_m = (first_row + tile % in_group % height) * BLOCK_M
    first_n = tile % in_group // height * BLOCK_N
    m = first_m + tl.arange(0, BLOCK_M)
    n = first_n + tl.arange(0, BLOCK_N)
    safe_m = tl.minimum(m, rows - 1).to(tl.int64)
    safe_n = tl.minimum(n, columns - 1).to(tl.int64)
    lanes = tl.arange(0, BLOCK_K)
    blocks = tl.cdiv(depth, BLOCK_K)
    first = 0
    end = blocks
    if SPLITS > 1:
        each = tl.where(program < undivided, blocks, tl.cdiv(blocks, SPLITS))
        first = split * each
        end = tl.minimum(first + each, blocks)
    if not DESCRIBED:
        a_at = a + safe_m[:, None] * depth + (first * BLOCK_K + lanes)[None, :]
        w_at = w + safe_n[None, :] * depth + (first * BLOCK_K + lanes)[:, None]
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    counts = tl.zeros([BLOCK_M, BLOCK_N], tl.int32)
    for block in range(first, end):
        if DESCRIBED:
            a_tile = a.load([first_m, block * BLOCK_K])
            w_tile = w.load([first_n, block * BLOCK_K]).T
        elif EVEN:
            a_tile = tl.load(a_at)
            w_tile = tl.load(w_at)
        else:
            left = depth - block * BLOCK_K
            a_tile = tl.load(a_at, mask=(lanes < left)[None, :], other=0.0)
            w_tile = tl.load(w_at, mask=(lanes < left)[:, None], other=0.0)
        if WHOLE:
            counts = tl.dot(a_tile, w_tile, counts, out_dtype=tl.int32)
        elif BLOCKS:
            part = tl.dot(a_tile, w_tile, out_dtype=tl.float32)
            a_scale = tl.load(a_scales + safe_m * a_row + block * a_block).to(tl.float32)
            w_scale = tl.load(w_scales + safe_n * w_row + block * w_block).to(tl.float32)
            total += part * (a_scale[:, None] * w_scale[None, :])
        else:
            total = tl.dot(a_tile, w_tile, total, out_dtype=tl.float32)
        if not DESCRIBED:
            a_at += BLOCK_K
            w_at += BLOCK_K
    mask = (m < rows)[:, None] & (n < columns)[None, :]
    last = True
    if SPLITS > 1:
        last = program < undivided
        if program >= undivided:
            # The program that ends last adds all parts, always in the same order; whole numbers are exact in any.
            within = tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
            part_at = parts + (tile - undivided).to(tl.int64) * (SPLITS * BLOCK_M * BLOCK_N) + within
            if WHOLE:
                tl.store(part_at + split * (BLOCK_M * BLOCK_N), counts)
            else:
                tl.store(part_at + split * (BLOCK_M * BLOCK_N), total)
            tl.debug_barrier()
            last = tl.atomic_add(locks + (tile - undivided), 1, sem="acq_rel") == SPLITS - 1
            if last:
                counts = tl.zeros([BLOCK_M, BLOCK_N], tl.int32)
                total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
                for other in tl.static_range(SPLITS):
                    part = tl.load(part_at + other * (BLOCK_M * BLOCK_N), cache_modifier=".cg")
                    if WHOLE:
                        counts += part
                    else:
                        total += part
                tl.store(locks + (tile - undivided), 0)
    if last:
        if WHOLE:
            total = counts.to(tl.float32)
        if not BLOCKS:
            total *= tl.load(a_scales + safe_m)[:, None] * tl.load(w_scales + safe_n)[None, :]
        if NUM_OUTLIERS > 0:
            slots = tl.arange(0, BLOCK_O)
            for chosen in tl.static_range(0, NUM_OUTLIERS, BLOCK_O):
                kept = tl.load(a_outliers + safe_m[:, None] * NUM_OUTLIERS + (chosen + slots)[None, :])
                beside = tl.load(w_outliers + safe_n[None, :] * NUM_OUTLIERS + (chosen + slots)[:, None])
                total = tl.dot(kept, beside, total, input_precision="ieee")
        if HAS_BIAS and TURNED:
            total += tl.load(bias + safe_m).to(tl.float32)[:, None]
        elif HAS_BIAS:
            total += tl.load(bias + safe_n).to(tl.float32)[None, :]
        at = m.to(tl.int64)[:, None] * columns + n[None, :]
        if TURNED:
            at = n.to(tl.int64)[None, :] * rows + m[:, None]
        tl.store(out + at, total.to(out.dtype.element_ty), mask=mask)


def scaled_gemm(
    a: torch.Tensor,
    w: torch.Tensor,
    a_scales: torch.Tensor,
    w_scales: torch.Tensor,
    dtype: torch.dtype,
    bias: torch.Tensor | None = None,
    a_outliers: torch.Tensor | None = None,
    w_outliers: torch.Tensor | None = None,
    tiles: ScaledTiles | PipeTiles | None = None,
) -> torch.Tensor:
    """The product of codes, times both multipliers, plus that of the outlier columns and the bias.

    Shapes: a [M, K] and w [N, K], both int8 or both E4M3; a_scales [M, 1] and w_scales [N, 1], or [M, K/128] and
        [N, K/128] of E4M3; a_outliers [M, k] and w_outliers [N, k], k a power of two from 16 on -> [M, N] in dtype
    """
    blocks = a_scales.shape[1] > 1
    if tiles is None:
        whole = a.dtype == torch.int8 and all(_describable(codes) for codes in (a, w))
        tiles = usual_tiles(a.device, a.shape[0], w.shape[0], a.shape[1], blocks=blocks, whole=whole)
    if isinstance(tiles, PipeTiles):
        assert pipelined is not None
        return pipelined(a, w, a_scales, w_scales, dtype, bias, a_outliers, w_outliers, tiles)
    out = torch.empty(a.shape[0], w.shape[0], dtype=dtype, device=a.device)
    kept = 0 if a_outliers is None else a_outliers.shape[1]
    if tiles.turned:
        a, w, a_scales, w_scales, a_outliers, w_outliers = w, a, w_scales, a_scales, w_outliers, a_outliers
    rows, depth = a.shape
    columns = w.shape[0]
    block_k = 128 if blocks else tiles.block_k
    described = tiles.described and all(_describable(codes) for codes in (a, w))
    num_tiles = triton.cdiv(rows, tiles.block_m) * triton.cdiv(columns, tiles.block_n)
    splits = min(tiles.splits, max(1, depth // LEAST_PART))
    undivided = num_tiles if splits == 1 else min(tiles.undivided, num_tiles)
    parted = num_tiles - undivided
    if parted > MAX_LOCKS:
        splits, undivided, parted = 1, num_tiles, 0
    parts = out
    if parted:
        kind = torch.int32 if a.dtype == torch.int8 else torch.float32
        parts = torch.empty(parted * splits * tiles.block_m * tiles.block_n, dtype=kind, device=a.device)
    strides = (*a_scales.stride(), *w_scales.stride()) if blocks else (1, 1, 1, 1)
    a_tiles = TensorDescriptor.from_tensor(a, [tiles.block_m, block_k]) if described else a
    w_tiles = TensorDescriptor.from_tensor(w, [tiles.block_n, block_k]) if described else w
    _scaled_gemm_kernel[(undivided + parted * splits,)](
        a_tiles, w_tiles, a_scales, w_scales,
        a if a_outliers is None else a_outliers, a if w_outliers is None else w_outliers,
        a if bias is None else bias, out, parts, locks_of(a.device), rows, columns, depth, undivided,
        *strides,
        a.dtype == torch.int8, blocks, kept, bias is not None, depth % block_k == 0,
        tiles.block_m, tiles.block_n, block_k, min(64, max(16, kept)), tiles.group_m, splits if parted else 1,
        described, tiles.turned, num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    return out


def _describable(codes: torch.Tensor) -> bool:
    return codes.shape[1] % 16 == 0 and codes.data_ptr() % 16 == 0 and codes.stride(1) == 1
