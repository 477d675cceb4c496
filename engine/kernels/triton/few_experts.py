"""Experts for a few tokens: each (token, expert) pair by itself, so that a chosen row of weights is read once a pair.

What bounds these is how soon all of a program's weights are asked for: its loads are unrolled and wait for nothing but
the experts' numbers. Every sum has one order, whatever the other tokens are.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from engine.kernels.triton.chained import chains, launch, let_next_start, wait_for_last
from engine.quant.expert_stack import ExpertStack

ACTIVATIONS = {"silu": 0, "gelu_tanh": 1, "swiglu_clamped": 2}
LEAST_BLOCK = 128  # of K that a tile has, where K is no multiple of more
PIECES = 4  # tiles of K that are asked for together


@dataclass(frozen=True, slots=True)
class FewTiles:
    block_n: int
    block_k: int  # at most
    warps: int


# The quickest of a sweep on an H200 (1 and 4 tokens of eight experts, 768 x 2,048): 83 to 100 % of the memory's rate.
GATE_UP = FewTiles(2, 1024, 2)
DOWN = FewTiles(2, 256, 2)


@triton.jit
def _gated(gate, up, ACTIVATION: tl.constexpr):
    if ACTIVATION == 0:
        result = gate * tl.sigmoid(gate) * up
    elif ACTIVATION == 1:
        inner = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
        result = gate * tl.sigmoid(2.0 * inner) * up  # 0.5 (1 + tanh x) = sigmoid(2x)
    else:
        gate = tl.minimum(gate, 7.0)
        up = tl.minimum(tl.maximum(up, -7.0), 7.0)
        result = gate * tl.sigmoid(1.702 * gate) * (up + 1.0)
    return result


@triton.jit
def _pair_gate_up_kernel(
    x, weight, bias, inner, ids, width, depth: tl.constexpr,
    CHOICES: tl.constexpr, ACTIVATION: tl.constexpr, HAS_BIAS: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PIECES: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    in_n = n < width
    at = tl.minimum(n, width - 1)[:, None] * depth + tl.arange(0, BLOCK_K)[None, :]
    lanes = tl.zeros([BLOCK_N, 1], tl.int32) + tl.arange(0, BLOCK_K)[None, :]
    EVEN: tl.constexpr = depth % (BLOCK_K * PIECES) == 0
    if CHAINED:
        let_next_start()
        wait_for_last()
    pair = tl.program_id(0)
    expert = tl.load(ids + pair).to(tl.int64)
    gate_rows = weight + expert * (2 * width * depth) + at
    up_rows = gate_rows + width.to(tl.int64) * depth
    row = x + (pair // CHOICES).to(tl.int64) * depth
    gates = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    ups = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    for start in range(0, depth, BLOCK_K * PIECES):
        for piece in tl.static_range(PIECES):
            k = start + piece * BLOCK_K
            if EVEN:
                a = tl.load(row + k + lanes).to(tl.float32)
                gate = tl.load(gate_rows + k, eviction_policy="evict_first")
                up = tl.load(up_rows + k, eviction_policy="evict_first")
            else:
                in_k = k + lanes < depth
                a = tl.load(row + k + lanes, mask=in_k, other=0.0).to(tl.float32)
                gate = tl.load(gate_rows + k, mask=in_k, other=0.0, eviction_policy="evict_first")
                up = tl.load(up_rows + k, mask=in_k, other=0.0, eviction_policy="evict_first")
            gates += a * gate.to(tl.float32)
            ups += a * up.to(tl.float32)
    gate, up = tl.sum(gates, axis=1), tl.sum(ups, axis=1)
    if HAS_BIAS:
        gate += tl.load(bias + expert * 2 * width + n, mask=in_n, other=0.0).to(tl.float32)
        up += tl.load(bias + expert * 2 * width + width + n, mask=in_n, other=0.0).to(tl.float32)
    tl.store(inner + pair * width + n, _gated(gate, up, ACTIVATION).to(inner.dtype.element_ty), mask=in_n)


@triton.jit
def _pairs_down_kernel(
    inner, weight, bias, pair_weights, out, ids, width, depth: tl.constexpr,
    CHOICES: tl.constexpr, PAD: tl.constexpr, HAS_BIAS: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PIECES: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """A token's output columns: a row of the tile is a column for one of the token's experts."""
    rows = tl.arange(0, PAD * BLOCK_N)
    choice = rows // BLOCK_N
    n = tl.program_id(1) * BLOCK_N + rows % BLOCK_N
    chosen = choice < CHOICES
    lanes = tl.arange(0, BLOCK_K)[None, :]
    EVEN: tl.constexpr = (depth % (BLOCK_K * PIECES) == 0) & (PAD == CHOICES)
    if CHAINED:
        let_next_start()
        wait_for_last()
    token = tl.program_id(0).to(tl.int64)
    pair = token * CHOICES + tl.minimum(choice, CHOICES - 1)
    expert = tl.load(ids + pair).to(tl.int64)
    share = tl.load(pair_weights + pair, mask=chosen, other=0.0)
    weight_rows = weight + (expert * width + tl.minimum(n, width - 1))[:, None] * depth + lanes
    inner_rows = inner + pair[:, None] * depth + lanes
    acc = tl.zeros([PAD * BLOCK_N, BLOCK_K], tl.float32)
    for start in range(0, depth, BLOCK_K * PIECES):
        for piece in tl.static_range(PIECES):
            k = start + piece * BLOCK_K
            if EVEN:
                a = tl.load(inner_rows + k)
                w = tl.load(weight_rows + k, eviction_policy="evict_first")
            else:
                real = chosen[:, None] & (k + lanes < depth)
                a = tl.load(inner_rows + k, mask=real, other=0.0)
                w = tl.load(weight_rows + k, mask=real, other=0.0, eviction_policy="evict_first")
            acc += a.to(tl.float32) * w.to(tl.float32)
    value = tl.sum(acc, axis=1)
    if HAS_BIAS:
        value += tl.load(bias + expert * width + n, mask=chosen & (n < width), other=0.0).to(tl.float32)
    total = tl.sum(tl.reshape(value * share, [PAD, BLOCK_N]), axis=0)
    to = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    tl.store(out + token * width + to, total.to(out.dtype.element_ty), mask=to < width)


def tile_depth(depth: int, most: int) -> tuple[int, int]:
    """(BLOCK_K, PIECES) of a K: tiles that divide it, if there are any wide enough."""
    block = most
    while block > LEAST_BLOCK and depth % block:
        block //= 2
    if depth % block:
        block = min(most, triton.next_power_of_2(depth))
    count = -(-depth // block)
    pieces = next(n for n in range(min(PIECES, count), 0, -1) if count % n == 0)
    return block, pieces


def few_experts(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    gate_up: ExpertStack,
    down: ExpertStack,
    gate_up_bias: torch.Tensor | None,
    down_bias: torch.Tensor | None,
    activation: str,
    tiles: tuple[FewTiles, FewTiles] = (GATE_UP, DOWN),
) -> torch.Tensor:
    """Shapes and meaning as reference_experts.experts; all contiguous, T at least 1."""
    tokens, depth = x.shape
    choices, width = ids.shape[1], gate_up.rows // 2
    chained, options = chains(x.device), launch(x.device)
    inner = torch.empty(tokens * choices, width, dtype=x.dtype, device=x.device)
    out = torch.empty_like(x)
    first, second = tiles
    block_k, pieces = tile_depth(depth, first.block_k)
    _pair_gate_up_kernel[(tokens * choices, triton.cdiv(width, first.block_n))](
        x, gate_up.weight, gate_up.weight if gate_up_bias is None else gate_up_bias, inner, ids, width, depth,
        choices, ACTIVATIONS[activation], gate_up_bias is not None, first.block_n, block_k, pieces, chained,
        num_warps=first.warps, **options,
    )  # fmt: skip
    block_k, pieces = tile_depth(width, second.block_k)
    _pairs_down_kernel[(tokens, triton.cdiv(depth, second.block_n))](
        inner, down.weight, down.weight if down_bias is None else down_bias, weights, out, ids, depth, width,
        choices, triton.next_power_of_2(choices), down_bias is not None, second.block_n, block_k, pieces, chained,
        num_warps=second.warps, **options,
    )  # fmt: skip
    return out
