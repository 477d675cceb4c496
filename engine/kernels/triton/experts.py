"""Experts: rows sorted by expert and multiplied in tiles; a few tokens go to few_experts.py.

Nothing is asked of the host: grids are upper bounds and programs beyond the work return at once, so a step can be
captured. A row's result depends on its own token and experts alone; a token's experts are added in their order.
Forms: plain weights of the activations' type. `pairs` are (token, choice), P = T * A of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from engine.kernels.triton.attention_tiles import shared_bytes
from engine.kernels.triton.chained import chains, launch, let_next_start, wait_for_last
from engine.kernels.triton.few_experts import ACTIVATIONS, _gated, few_experts
from engine.quant.expert_stack import ExpertStack

FEW_PAIRS = 32  # up to here a weight's row is read once a pair, which L2 absorbs


@triton.jit
def _count_kernel(ids, counts, num_pairs, BLOCK: tl.constexpr, CHAINED: tl.constexpr):
    expert = tl.program_id(0)
    lanes = tl.arange(0, BLOCK)
    if CHAINED:
        let_next_start()
        wait_for_last()
    found = tl.zeros([BLOCK], tl.int32)
    for start in range(0, num_pairs, BLOCK):
        here = tl.load(ids + start + lanes, mask=start + lanes < num_pairs, other=-1)
        found += (here == expert).to(tl.int32)
    tl.store(counts + expert, tl.sum(found, axis=0))


@triton.jit
def _scan_kernel(
    counts, starts, tile_ends, num_experts, BLOCK_M: tl.constexpr, BLOCK: tl.constexpr, CHAINED: tl.constexpr
):  # fmt: skip
    lanes = tl.arange(0, BLOCK)
    if CHAINED:
        let_next_start()
        wait_for_last()
    mask = lanes < num_experts
    count = tl.load(counts + lanes, mask=mask, other=0)
    tl.store(starts + lanes, tl.cumsum(count, axis=0) - count, mask=mask)
    tl.store(tile_ends + lanes, tl.cumsum((count + BLOCK_M - 1) // BLOCK_M, axis=0), mask=mask)


@triton.jit
def _place_kernel(ids, starts, order, num_pairs, BLOCK: tl.constexpr, CHAINED: tl.constexpr):
    expert = tl.program_id(0)
    lanes = tl.arange(0, BLOCK)
    if CHAINED:
        let_next_start()
        wait_for_last()
    at = tl.load(starts + expert)
    for start in range(0, num_pairs, BLOCK):
        mine = tl.load(ids + start + lanes, mask=start + lanes < num_pairs, other=-1) == expert
        rank = tl.cumsum(mine.to(tl.int32), axis=0)
        tl.store(order + at + rank - 1, start + lanes, mask=mine)
        at += tl.sum(mine.to(tl.int32), axis=0)


@triton.jit
def _tile_rows(order, counts, starts, tile_ends, num_experts, BLOCK_M: tl.constexpr, STEPS: tl.constexpr):
    """The expert of this tile (num_experts: none), its rows in sorted order, which exist, and their pairs."""
    tile = tl.program_id(0)
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
    return expert, rows, exists, pairs


@triton.jit
def _gate_up_kernel(
    x, weight, bias, inner, order, counts, starts, tile_ends, num_experts, width, depth,
    CHOICES: tl.constexpr, ACTIVATION: tl.constexpr, HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STEPS: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    if CHAINED:
        let_next_start()
        wait_for_last()
    expert, rows, exists, pairs = _tile_rows(order, counts, starts, tile_ends, num_experts, BLOCK_M, STEPS)
    if expert >= num_experts:
        return
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    in_n = n < width
    lanes = tl.arange(0, BLOCK_K)
    x_rows = x + (pairs // CHOICES).to(tl.int64)[:, None] * depth
    gate_rows = weight + (expert.to(tl.int64) * 2 * width + n)[None, :] * depth
    up_rows = gate_rows + width.to(tl.int64) * depth
    gate = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    up = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, depth, BLOCK_K):
        k = start + lanes
        in_k = k < depth
        a = tl.load(x_rows + k[None, :], mask=exists[:, None] & in_k[None, :], other=0.0)
        w = tl.load(gate_rows + k[:, None], mask=in_k[:, None] & in_n[None, :], other=0.0)
        gate = tl.dot(a, w, gate)
        w = tl.load(up_rows + k[:, None], mask=in_k[:, None] & in_n[None, :], other=0.0)
        up = tl.dot(a, w, up)
    if HAS_BIAS:
        gate += tl.load(bias + expert * 2 * width + n, mask=in_n, other=0.0).to(tl.float32)[None, :]
        up += tl.load(bias + expert * 2 * width + width + n, mask=in_n, other=0.0).to(tl.float32)[None, :]
    value = _gated(gate, up, ACTIVATION).to(inner.dtype.element_ty)
    at = inner + rows.to(tl.int64)[:, None] * width + n[None, :]
    tl.store(at, value, mask=exists[:, None] & in_n[None, :])


@triton.jit
def _down_kernel(
    inner, weight, bias, pair_weights, parts, order, counts, starts, tile_ends, num_experts, width, depth,
    HAS_BIAS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STEPS: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    if CHAINED:
        let_next_start()
        wait_for_last()
    expert, rows, exists, pairs = _tile_rows(order, counts, starts, tile_ends, num_experts, BLOCK_M, STEPS)
    if expert >= num_experts:
        return
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    in_n = n < width
    lanes = tl.arange(0, BLOCK_K)
    a_rows = inner + rows.to(tl.int64)[:, None] * depth
    w_rows = weight + (expert.to(tl.int64) * width + n)[None, :] * depth
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, depth, BLOCK_K):
        k = start + lanes
        in_k = k < depth
        a = tl.load(a_rows + k[None, :], mask=exists[:, None] & in_k[None, :], other=0.0)
        w = tl.load(w_rows + k[:, None], mask=in_k[:, None] & in_n[None, :], other=0.0)
        acc = tl.dot(a, w, acc)
    if HAS_BIAS:
        acc += tl.load(bias + expert * width + n, mask=in_n, other=0.0).to(tl.float32)[None, :]
    acc *= tl.load(pair_weights + pairs, mask=exists, other=0.0)[:, None]
    at = parts + pairs.to(tl.int64)[:, None] * width + n[None, :]
    tl.store(at, acc.to(parts.dtype.element_ty), mask=exists[:, None] & in_n[None, :])


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


def pack(stack: ExpertStack) -> ExpertStack:
    assert isinstance(stack.weight, torch.Tensor), "only plain weights are offered these kernels"
    return ExpertStack(stack.weight.contiguous(), stack.num_experts)


def experts(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    gate_up: ExpertStack,
    down: ExpertStack,
    gate_up_bias: torch.Tensor | None = None,
    down_bias: torch.Tensor | None = None,
    activation: str = "silu",
) -> torch.Tensor:
    """Shapes and meaning as reference_experts.experts."""
    x, ids, weights = x.contiguous(), ids.contiguous(), weights.contiguous()
    if x.shape[0] == 0:
        return torch.empty_like(x)
    run = few_experts if ids.numel() <= FEW_PAIRS else _many
    return run(x, ids, weights, gate_up, down, gate_up_bias, down_bias, activation)


def _many(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    gate_up: ExpertStack,
    down: ExpertStack,
    gate_up_bias: torch.Tensor | None,
    down_bias: torch.Tensor | None,
    activation: str,
) -> torch.Tensor:
    tokens, depth = x.shape
    pairs, count, width = ids.numel(), gate_up.num_experts, gate_up.rows // 2
    found = sorted_pairs(ids, count)
    block_m = found.block_m
    inner = torch.empty(pairs, width, dtype=x.dtype, device=x.device)
    parts = torch.empty(pairs, depth, dtype=torch.float32 if x.dtype == torch.float32 else x.dtype, device=x.device)
    steps = count.bit_length() + 1
    block_n, block_k, warps = (64, 128, 4) if block_m <= 32 else (128 if x.element_size() <= 2 else 64, 64, 8)
    copies = 2 if block_m > 32 and x.element_size() > 2 else 1  # such products read numbers of 32 bits turned around
    stages = stages_of(copies * (block_m + 2 * block_n) * block_k * x.element_size(), x.device)
    chained, options = chains(x.device), launch(x.device)
    _gate_up_kernel[(found.tiles, triton.cdiv(width, block_n))](
        x, gate_up.weight, gate_up.weight if gate_up_bias is None else gate_up_bias, inner,
        *found.tensors, count, width, depth, ids.shape[1], ACTIVATIONS[activation], gate_up_bias is not None,
        block_m, block_n, block_k, steps, chained, num_warps=warps, num_stages=stages, **options,
    )  # fmt: skip
    _down_kernel[(found.tiles, triton.cdiv(depth, block_n))](
        inner, down.weight, down.weight if down_bias is None else down_bias, weights, parts,
        *found.tensors, count, depth, width, down_bias is not None,
        block_m, block_n, block_k, steps, chained, num_warps=warps, num_stages=stages, **options,
    )  # fmt: skip
    out = torch.empty_like(x)
    block = min(1024, triton.next_power_of_2(depth))
    _sum_kernel[(tokens, triton.cdiv(depth, block))](
        parts, out, depth, ids.shape[1], block, chained, num_warps=4, **options
    )
    return out


def stages_of(tile_bytes: int, device: torch.device) -> int:
    """Tiles in flight, three at most, as far as a program's shared memory holds them."""
    return max(1, min(3, shared_bytes(device) // tile_bytes))


@dataclass(frozen=True, slots=True, eq=False)
class SortedPairs:
    """Pairs in the order of their experts, and how many tiles of block_m rows they take at most."""

    tensors: tuple[torch.Tensor, ...]  # order, counts, starts, tile_ends, as the kernels take them
    block_m: int
    tiles: int


def sorted_pairs(ids: torch.Tensor, count: int) -> SortedPairs:
    """Shapes: ids [T, A] int32 below count"""
    pairs = ids.numel()
    block_m = tile_rows(pairs, count)
    order = torch.empty(pairs, dtype=torch.int32, device=ids.device)
    counts, starts, tile_ends = torch.empty(3, count, dtype=torch.int32, device=ids.device).unbind()
    block = min(4096, max(16, triton.next_power_of_2(pairs)))
    chained, options = chains(ids.device), launch(ids.device)
    padded = triton.next_power_of_2(count)
    _count_kernel[(count,)](ids, counts, pairs, block, chained, num_warps=4, **options)
    _scan_kernel[(1,)](counts, starts, tile_ends, count, block_m, padded, chained, num_warps=1, **options)
    _place_kernel[(count,)](ids, starts, order, pairs, block, chained, num_warps=4, **options)
    return SortedPairs((order, counts, starts, tile_ends), block_m, min(pairs, pairs // block_m + count))


def tile_rows(pairs: int, experts: int) -> int:
    """Rows of a tile: about what an expert has on average, so that few tiles are mostly empty."""
    average = pairs / experts
    return 16 if average <= 16 else 32 if average <= 48 else 64 if average <= 128 else 128
