"""Pairs of tokens and experts in the order of their experts, in tiles of rows that one expert has.

Nothing is asked of the host: the number of tiles is an upper bound, and a tile beyond the work has no expert.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from engine.kernels.triton.chained import chains, launch, let_next_start, wait_for_last
from engine.kernels.triton.few_experts import _gated

BLOCK = 4096  # pairs that a program looks at together
MAX_SEGMENTS = 16  # in which many pairs are counted and placed side by side


@triton.jit
def _count_kernel(
    ids, counts, num_pairs, each, SEGMENTS: tl.constexpr, BLOCK: tl.constexpr, CHAINED: tl.constexpr
):  # fmt: skip
    """A program finds an expert's pairs among the `each` of a segment."""
    expert = tl.program_id(0)
    segment = tl.program_id(1)
    lanes = tl.arange(0, BLOCK)
    if CHAINED:
        let_next_start()
        wait_for_last()
    first = segment * each
    end = tl.minimum(first + each, num_pairs)
    found = tl.zeros([BLOCK], tl.int32)
    for start in range(first, end, BLOCK):
        here = tl.load(ids + start + lanes, mask=start + lanes < end, other=-1)
        found += (here == expert).to(tl.int32)
    tl.store(counts + expert * SEGMENTS + segment, tl.sum(found, axis=0))


@triton.jit
def _scan_kernel(
    found, firsts, counts, starts, tile_ends, num_experts,
    SEGMENTS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """found [E, SEGMENTS] -> firsts alike: where a segment's pairs of an expert begin."""
    experts = tl.arange(0, BLOCK)
    lanes = tl.arange(0, BLOCK * SEGMENTS)
    if CHAINED:
        let_next_start()
        wait_for_last()
    mask = experts < num_experts
    inside = lanes < num_experts * SEGMENTS
    each = tl.load(found + lanes, mask=inside, other=0)
    tl.store(firsts + lanes, tl.cumsum(each, axis=0) - each, mask=inside)
    count = tl.sum(tl.reshape(each, [BLOCK, SEGMENTS]), axis=1)
    tl.store(counts + experts, count, mask=mask)
    tl.store(starts + experts, tl.cumsum(count, axis=0) - count, mask=mask)
    tl.store(tile_ends + experts, tl.cumsum((count + BLOCK_M - 1) // BLOCK_M, axis=0), mask=mask)


@triton.jit
def _place_kernel(
    ids, firsts, order, num_pairs, each, SEGMENTS: tl.constexpr, BLOCK: tl.constexpr, CHAINED: tl.constexpr
):  # fmt: skip
    expert = tl.program_id(0)
    segment = tl.program_id(1)
    lanes = tl.arange(0, BLOCK)
    if CHAINED:
        let_next_start()
        wait_for_last()
    first = segment * each
    end = tl.minimum(first + each, num_pairs)
    at = tl.load(firsts + expert * SEGMENTS + segment)
    for start in range(first, end, BLOCK):
        mine = tl.load(ids + start + lanes, mask=start + lanes < end, other=-1) == expert
        rank = tl.cumsum(mine.to(tl.int32), axis=0)
        tl.store(order + at + rank - 1, start + lanes, mask=mine)
        at += tl.sum(mine.to(tl.int32), axis=0)


@triton.jit
def _tile_rows(
    width, order, counts, starts, tile_ends, num_experts,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """The expert of this program's tile (num_experts: none), its rows in sorted order, which exist, and their pairs.

    And the first of its columns: a tile's columns follow one another in the grid.
    """
    blocks = tl.cdiv(width, BLOCK_N)
    tile = tl.program_id(0) // blocks
    low = 0
    high = num_experts
    for _ in range(STEPS):
        if low < high:
            middle = (low + high) // 2
            if tl.load(tile_ends + middle) <= tile:
                low = middle + 1
            else:
                high = middle
    expert = low
    safe = tl.minimum(expert, num_experts - 1)
    count = tl.load(counts + safe)
    tiles_before = tl.load(tile_ends + safe) - (count + BLOCK_M - 1) // BLOCK_M
    local = (tile - tiles_before) * BLOCK_M + tl.arange(0, BLOCK_M)
    exists = (local < count) & (expert < num_experts)
    rows = tl.load(starts + safe) + local
    pairs = tl.load(order + rows, mask=exists, other=0)
    return expert, rows, exists, pairs, tl.program_id(0) % blocks * BLOCK_N


@triton.jit
def _keep_gated(gate, up, inner, rows, exists, n, width, ACTIVATION: tl.constexpr):
    """A tile of what the down product reads, at its rows in sorted order."""
    value = _gated(gate, up, ACTIVATION).to(inner.dtype.element_ty)
    at = inner + rows.to(tl.int64)[:, None] * width + n[None, :]
    tl.store(at, value, mask=exists[:, None] & (n < width)[None, :])


@triton.jit
def _keep_part(acc, pair_weights, parts, pairs, exists, n, width):
    """A tile of what pairs add to their tokens, by their shares."""
    acc *= tl.load(pair_weights + pairs, mask=exists, other=0.0)[:, None]
    at = parts + pairs.to(tl.int64)[:, None] * width + n[None, :]
    tl.store(at, acc.to(parts.dtype.element_ty), mask=exists[:, None] & (n < width)[None, :])


@triton.jit
def _sum_kernel(parts, out, width, CHOICES: tl.constexpr, BLOCK: tl.constexpr, CHAINED: tl.constexpr):
    """A token's experts, in their order."""
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < width
    if CHAINED:
        let_next_start()
        wait_for_last()
    token = tl.program_id(0).to(tl.int64)
    row = parts + token * CHOICES * width + columns
    total = tl.zeros([BLOCK], tl.float32)
    for choice in tl.static_range(CHOICES):
        total += tl.load(row + choice * width, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + token * width + columns, total.to(out.dtype.element_ty), mask=mask)


@dataclass(frozen=True, slots=True, eq=False)
class SortedPairs:
    """Pairs in the order of their experts, and how many tiles of block_m rows they take at most."""

    tensors: tuple[torch.Tensor, ...]  # order, counts, starts, tile_ends, as the kernels take them
    block_m: int
    tiles: int


def sorted_pairs(ids: torch.Tensor, count: int, block_m: int | None = None) -> SortedPairs:
    """block_m: rows of a tile, None for what suits. Shapes: ids [T, A] int32 below count"""
    pairs = ids.numel()
    block_m = block_m or tile_rows(pairs, count)
    order = torch.empty(pairs, dtype=torch.int32, device=ids.device)
    counts, starts, tile_ends = torch.empty(3, count, dtype=torch.int32, device=ids.device).unbind()
    block = min(BLOCK, max(16, triton.next_power_of_2(pairs)))
    segments = min(MAX_SEGMENTS, triton.next_power_of_2(triton.cdiv(pairs, block)))
    each = triton.cdiv(triton.cdiv(pairs, segments), block) * block
    found, firsts = torch.empty(2, count, segments, dtype=torch.int32, device=ids.device).unbind()
    padded, chained, options = triton.next_power_of_2(count), chains(ids.device), launch(ids.device)
    grid = (count, segments)
    _count_kernel[grid](ids, found, pairs, each, segments, block, chained, num_warps=4, **options)
    _scan_kernel[(1,)](
        found, firsts, counts, starts, tile_ends, count, segments, block_m, padded, chained, num_warps=4, **options
    )
    _place_kernel[grid](ids, firsts, order, pairs, each, segments, block, chained, num_warps=4, **options)
    return SortedPairs((order, counts, starts, tile_ends), block_m, min(pairs, pairs // block_m + count))


def tile_rows(pairs: int, experts: int) -> int:
    """Rows of a tile: about what an expert has on average, so that few tiles are mostly empty."""
    average = pairs / experts
    return 16 if average <= 16 else 32 if average <= 48 else 64 if average <= 128 else 128


def summed(parts: torch.Tensor, tokens: int, dtype: torch.dtype) -> torch.Tensor:
    """What a token's experts add to it, in their order. Shapes: parts [P, hidden] -> [T, hidden]"""
    pairs, width = parts.shape
    out = torch.empty(tokens, width, dtype=dtype, device=parts.device)
    block = min(1024, triton.next_power_of_2(width))
    _sum_kernel[(tokens, triton.cdiv(width, block))](
        parts, out, width, pairs // tokens, block, chains(parts.device), num_warps=4, **launch(parts.device)
    )
    return out
