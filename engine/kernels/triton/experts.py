"""Experts: rows sorted by expert and multiplied in tiles; a few tokens go to few_experts.py.

Nothing is asked of the host: grids are upper bounds and programs beyond the work return at once, so a step can be
captured. A row's result depends on its own token and experts alone; a token's experts are added in their order.
Forms: plain weights of the activations' type. `pairs` are (token, choice), P = T * A of them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.kernels.triton.attention_tiles import shared_bytes
from engine.kernels.triton.chained import chains, launch, let_next_start, wait_for_last
from engine.kernels.triton.device import copies_tiles
from engine.kernels.triton.few_experts import ACTIVATIONS, few_experts
from engine.kernels.triton.grouped_experts import fits, grouped_parts, grouped_rows
from engine.kernels.triton.sorted_pairs import SortedPairs, _keep_gated, _keep_part, _tile_rows, sorted_pairs, summed
from engine.quant.expert_stack import ExpertStack

FEW_PAIRS = 32  # up to here a weight's row is read once a pair, which L2 absorbs


@triton.jit
def _gate_up_kernel(
    x, weight, bias, inner, order, counts, starts, tile_ends, num_experts, width, depth,
    CHOICES: tl.constexpr, ACTIVATION: tl.constexpr, HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STEPS: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    if CHAINED:
        let_next_start()
        wait_for_last()
    expert, rows, exists, pairs, first_n = _tile_rows(
        width, order, counts, starts, tile_ends, num_experts, BLOCK_M, BLOCK_N, STEPS
    )
    if expert >= num_experts:
        return
    n = first_n + tl.arange(0, BLOCK_N)
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
    _keep_gated(gate, up, inner, rows, exists, n, width, ACTIVATION)


@triton.jit
def _down_kernel(
    inner, weight, bias, pair_weights, parts, order, counts, starts, tile_ends, num_experts, width, depth,
    HAS_BIAS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STEPS: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    if CHAINED:
        let_next_start()
        wait_for_last()
    expert, rows, exists, pairs, first_n = _tile_rows(
        width, order, counts, starts, tile_ends, num_experts, BLOCK_M, BLOCK_N, STEPS
    )
    if expert >= num_experts:
        return
    n = first_n + tl.arange(0, BLOCK_N)
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
    _keep_part(acc, pair_weights, parts, pairs, exists, n, width)


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
    tokens, choices = ids.shape
    rows = grouped_rows(ids.numel(), gate_up.num_experts) if copies_tiles(x.device) and fits(x, gate_up) else None
    found = sorted_pairs(ids, gate_up.num_experts, rows)
    run = _parts if rows is None else grouped_parts
    parts = run(x, choices, weights, gate_up, down, gate_up_bias, down_bias, activation, found)
    return summed(parts, tokens, x.dtype)


def _parts(
    x: torch.Tensor,
    choices: int,
    weights: torch.Tensor,
    gate_up: ExpertStack,
    down: ExpertStack,
    gate_up_bias: torch.Tensor | None,
    down_bias: torch.Tensor | None,
    activation: str,
    found: SortedPairs,
) -> torch.Tensor:
    """What each pair adds to its token. Shapes: x [T, hidden] -> [P, hidden]"""
    tokens, depth = x.shape
    pairs, count, width = tokens * choices, gate_up.num_experts, gate_up.rows // 2
    block_m = found.block_m
    inner = torch.empty(pairs, width, dtype=x.dtype, device=x.device)
    parts = torch.empty(pairs, depth, dtype=x.dtype, device=x.device)
    steps = count.bit_length() + 1
    block_n, block_k, warps = (64, 128, 4) if block_m <= 32 else (128 if x.element_size() <= 2 else 64, 64, 8)
    copies = 2 if block_m > 32 and x.element_size() > 2 else 1  # such products read numbers of 32 bits turned around
    stages = stages_of(copies * (block_m + 2 * block_n) * block_k * x.element_size(), x.device)
    chained, options = chains(x.device), launch(x.device)
    _gate_up_kernel[(found.tiles * triton.cdiv(width, block_n),)](
        x, gate_up.weight, gate_up.weight if gate_up_bias is None else gate_up_bias, inner,
        *found.tensors, count, width, depth, choices, ACTIVATIONS[activation], gate_up_bias is not None,
        block_m, block_n, block_k, steps, chained, num_warps=warps, num_stages=stages, **options,
    )  # fmt: skip
    _down_kernel[(found.tiles * triton.cdiv(depth, block_n),)](
        inner, down.weight, down.weight if down_bias is None else down_bias, weights, parts,
        *found.tensors, count, depth, width, down_bias is not None,
        block_m, block_n, block_k, steps, chained, num_warps=warps, num_stages=stages, **options,
    )  # fmt: skip
    return parts


def stages_of(tile_bytes: int, device: torch.device) -> int:
    """Tiles in flight, three at most, as far as a program's shared memory holds them."""
    return max(1, min(3, shared_bytes(device) // tile_bytes))
