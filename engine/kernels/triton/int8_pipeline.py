"""The int8 product of scaled_gemm.py with the next matrix instruction under way before the last has ended.

Triton's own compiler waits for each integer product; here the waits are written out, and the tiles are as large as a
unit's registers hold, since what limits them is how fast codes come from the cache that all units share. For devices
with the instructions of compute capability 9.0; scaled_gemm.py computes the same elsewhere.
"""

from __future__ import annotations

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from engine.kernels.triton.device import locks_of
from engine.kernels.triton.scaled_tiles import PipeTiles

BLOCK_K = 128


@gluon.jit
def _fetch(a, w, a_tiles, w_tiles, ready, slot, first_m, first_n, block, exists, BLOCK_K: gl.constexpr):
    """One block of K of both sides into a slot, whose barrier says when it has come."""
    arrived = ready.index(slot)
    mbarrier.expect(arrived, a.block_type.nbytes + w.block_type.nbytes, pred=exists)
    tma.async_copy_global_to_shared(a, [first_m, block * BLOCK_K], arrived, a_tiles.index(slot), pred=exists)
    tma.async_copy_global_to_shared(w, [first_n, block * BLOCK_K], arrived, w_tiles.index(slot), pred=exists)


@gluon.jit
def _pipeline_kernel(
    a, w, a_scales, w_scales, a_outliers, w_outliers, bias, out, parts, locks, rows, columns, depth, out_stride,
    undivided,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr, GROUP_M: gl.constexpr,
    SPLITS: gl.constexpr, KEPT: gl.constexpr, HAS_BIAS: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """a, w, a_outliers, w_outliers: descriptors of tiles. KEPT: columns kept beside, 0 without such.

    undivided: tiles that one program does; the K of those after them is shared out among SPLITS programs each.
    """
    row_tiles = gl.cdiv(rows, BLOCK_M)
    column_tiles = gl.cdiv(columns, BLOCK_N)
    program = gl.program_id(0)
    tile = program
    split = 0
    if SPLITS > 1:
        beyond = gl.maximum(program - undivided, 0)
        tile = gl.minimum(program, undivided) + beyond // SPLITS
        split = beyond % SPLITS
    in_group = GROUP_M * column_tiles
    first_row = tile // in_group * GROUP_M
    height = gl.minimum(row_tiles - first_row, GROUP_M)
    first_m = (first_row + tile % in_group % height) * BLOCK_M
    first_n = tile % in_group // height * BLOCK_N
    first = 0
    end = gl.cdiv(depth, BLOCK_K)
    if SPLITS > 1:
        each = gl.where(program < undivided, end, gl.cdiv(end, SPLITS))
        first = split * each
        end = gl.minimum(first + each, end)

    # The compiler knows no integer instruction of 256 columns.
    whole: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, min(BLOCK_N, 128), 32])
    wide: gl.constexpr = gl.BlockedLayout([1, 8], [256 // BLOCK_N, BLOCK_N // 8], [WARPS, 1], [1, 0])
    a_tiles = gl.allocate_shared_memory(a.dtype, [STAGES, BLOCK_M, BLOCK_K], a.layout)
    w_tiles = gl.allocate_shared_memory(w.dtype, [STAGES, BLOCK_N, BLOCK_K], w.layout)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(ready.index(stage), count=1)
    for stage in gl.static_range(STAGES - 1):
        _fetch(a, w, a_tiles, w_tiles, ready, stage, first_m, first_n, first + stage, first + stage < end, BLOCK_K)
    counts = gl.zeros([BLOCK_M, BLOCK_N], gl.int32, whole)
    for block in range(first, end):
        at = block - first
        slot = at % STAGES
        mbarrier.wait(ready.index(slot), at // STAGES & 1)
        counts = warpgroup_mma(a_tiles.index(slot), w_tiles.index(slot).permute((1, 0)), counts, is_async=True)
        # The product before has ended: what it read makes room for what comes.
        counts = warpgroup_mma_wait(num_outstanding=1, deps=(counts,))
        later = block + STAGES - 1
        _fetch(a, w, a_tiles, w_tiles, ready, (at + STAGES - 1) % STAGES, first_m, first_n, later, later < end, BLOCK_K)
    counts = warpgroup_mma_wait(num_outstanding=0, deps=(counts,))
    for stage in gl.static_range(STAGES):
        mbarrier.invalidate(ready.index(stage))
    if KEPT > 0:
        # On their way while parts are added.
        kept_tile = gl.allocate_shared_memory(a_outliers.dtype, [BLOCK_M, KEPT], a_outliers.layout)
        beside_tile = gl.allocate_shared_memory(w_outliers.dtype, [BLOCK_N, KEPT], w_outliers.layout)
        come = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
        mbarrier.init(come, count=1)
        fence_async_shared()
        mbarrier.expect(come, a_outliers.block_type.nbytes + w_outliers.block_type.nbytes)
        tma.async_copy_global_to_shared(a_outliers, [first_m, 0], come, kept_tile)
        tma.async_copy_global_to_shared(w_outliers, [first_n, 0], come, beside_tile)
    m_whole = gl.arange(0, BLOCK_M, gl.SliceLayout(1, whole))
    n_whole = gl.arange(0, BLOCK_N, gl.SliceLayout(0, whole))
    last = True
    if SPLITS > 1:
        last = program < undivided
        if program >= undivided:
            # The program that ends last adds all parts; whole numbers are exact in any order.
            within = m_whole[:, None] * BLOCK_N + n_whole[None, :]
            part_at = parts + (tile - undivided).to(gl.int64) * (SPLITS * BLOCK_M * BLOCK_N) + within
            gl.store(part_at + split * (BLOCK_M * BLOCK_N), counts)
            gl.thread_barrier()
            last = gl.atomic_add(locks + (tile - undivided), 1, sem="acq_rel") == SPLITS - 1
            if last:
                for other in gl.static_range(1, SPLITS):
                    turn = (split + other) % SPLITS
                    counts += gl.load(part_at + turn * (BLOCK_M * BLOCK_N), cache_modifier=".cg")
                gl.store(locks + (tile - undivided), 0)
    if KEPT > 0:
        mbarrier.wait(come, 0)
        mbarrier.invalidate(come)
    if last:
        total = counts.to(gl.float32)
        total *= gl.load(a_scales + gl.minimum(first_m + m_whole, rows - 1))[:, None]
        total *= gl.load(w_scales + gl.minimum(first_n + n_whole, columns - 1))[None, :]
        if KEPT > 0:
            halves: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, min(BLOCK_N, 128), 16])
            total = gl.convert_layout(total, halves)
            total = warpgroup_mma(kept_tile, beside_tile.permute((1, 0)), total)
        result = gl.convert_layout(total.to(out.dtype.element_ty), wide)
        m = first_m + gl.arange(0, BLOCK_M, gl.SliceLayout(1, wide))
        n = first_n + gl.arange(0, BLOCK_N, gl.SliceLayout(0, wide))
        if HAS_BIAS:
            added = gl.load(bias + gl.minimum(n, columns - 1)).to(gl.float32)
            result = (result.to(gl.float32) + added[None, :]).to(out.dtype.element_ty)
        mask = (m < rows)[:, None] & (n < columns)[None, :]
        gl.store(out + m.to(gl.int64)[:, None] * out_stride + n[None, :], result, mask=mask)


def pipelined(
    a: torch.Tensor,
    w: torch.Tensor,
    a_scales: torch.Tensor,
    w_scales: torch.Tensor,
    dtype: torch.dtype,
    bias: torch.Tensor | None,
    a_outliers: torch.Tensor | None,
    w_outliers: torch.Tensor | None,
    tiles: PipeTiles,
) -> torch.Tensor:
    """scaled_gemm of int8 codes, whose rows begin at multiples of 16 bytes. Shapes: as scaled_gemm"""
    out = torch.empty(a.shape[0], w.shape[0], dtype=dtype, device=a.device)
    first = 0
    for one, end in ((tiles, tiles.columns or w.shape[0]), (tiles.rest, w.shape[0])):
        if one is None or first == end:
            continue
        beside = None if w_outliers is None else w_outliers[first:end]
        added = None if bias is None else bias[first:end]
        _launch(a, w[first:end], a_scales, w_scales[first:end], out[:, first:end], added, a_outliers, beside, one)
        first = end
    return out


def _launch(
    a: torch.Tensor, w: torch.Tensor, a_scales: torch.Tensor, w_scales: torch.Tensor, out: torch.Tensor,
    bias: torch.Tensor | None, a_outliers: torch.Tensor | None, w_outliers: torch.Tensor | None, tiles: PipeTiles,
) -> None:  # fmt: skip
    """Mutates: out"""
    (rows, depth), columns, device = a.shape, w.shape[0], a.device
    num_tiles = triton.cdiv(rows, tiles.block_m) * triton.cdiv(columns, tiles.block_n)
    splits = min(tiles.splits, triton.cdiv(depth, BLOCK_K))
    parted = 0 if splits == 1 else max(0, num_tiles - tiles.undivided)
    parts = out
    if parted:
        parts = torch.empty(parted * splits * tiles.block_m * tiles.block_n, dtype=torch.int32, device=device)
    kept = 0 if a_outliers is None or w_outliers is None else int(a_outliers.shape[1])
    _pipeline_kernel[(num_tiles - parted + parted * splits,)](
        _described(a, tiles.block_m, BLOCK_K), _described(w, tiles.block_n, BLOCK_K), a_scales, w_scales,
        a if a_outliers is None else _described(a_outliers, tiles.block_m, kept),
        w if w_outliers is None else _described(w_outliers, tiles.block_n, kept),
        a if bias is None else bias, out, parts, locks_of(device), rows, columns, depth, out.stride(0),
        num_tiles - parted, tiles.block_m, tiles.block_n, BLOCK_K, tiles.stages, tiles.group_m,
        splits if parted else 1, kept, bias is not None, tiles.warps, num_warps=tiles.warps,
    )  # fmt: skip


def _described(matrix: torch.Tensor, height: int, width: int) -> TensorDescriptor:
    kind = {torch.int8: gl.int8, torch.float16: gl.float16, torch.bfloat16: gl.bfloat16}[matrix.dtype]
    layout = gl.NVMMASharedLayout.get_default_for([height, width], kind)
    return TensorDescriptor.from_tensor(matrix, [height, width], layout)
