"""Experts of many tokens where the device copies tiles by descriptors: the matrix units wait for no address.

A token's row is first copied to each of its experts' places, so that an expert's rows lie together. A gate's tile and
its up's are one product of twice the width, which the descriptor lays side by side.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from engine.kernels.triton.chained import chains, launch, let_next_start, wait_for_last
from engine.kernels.triton.few_experts import ACTIVATIONS
from engine.kernels.triton.sorted_pairs import SortedPairs, _keep_gated, _keep_part, _tile_rows

if TYPE_CHECKING:
    from engine.quant.expert_stack import ExpertStack

ALIGNED = 8  # numbers of two bytes that a row's length is a multiple of


@dataclass(frozen=True, slots=True)
class GroupedTiles:
    block_m: int
    block_n: int
    block_k: int
    warps: int
    stages: int


# By rows of a tile; the quickest of sweeps on an H200 (128 experts of 768 x 2,048).
GATE_UP = {64: GroupedTiles(64, 64, 64, 4, 4), 128: GroupedTiles(128, 128, 64, 8, 4)}
DOWN = {64: GroupedTiles(64, 128, 64, 4, 4), 128: GroupedTiles(128, 256, 64, 8, 4)}


@triton.jit
def _spread_kernel(x, spread, order, width, CHOICES: tl.constexpr, BLOCK: tl.constexpr, CHAINED: tl.constexpr):
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < width
    if CHAINED:
        let_next_start()
        wait_for_last()
    row = tl.program_id(0).to(tl.int64)
    token = (tl.load(order + row) // CHOICES).to(tl.int64)
    tl.store(spread + row * width + columns, tl.load(x + token * width + columns, mask=mask), mask=mask)


@triton.jit
def _grouped_gate_up_kernel(
    rows_of, matrices, bias, inner, order, counts, starts, tile_ends, num_experts, width, depth,
    ACTIVATION: tl.constexpr, HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STEPS: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """rows_of: a descriptor of [P, K] in tiles [M, K]; matrices: of [E, 2, N, K] in tiles [1, 2, N, K]"""
    if CHAINED:
        let_next_start()
        wait_for_last()
    expert, rows, exists, _, first_n = _tile_rows(
        width, order, counts, starts, tile_ends, num_experts, BLOCK_M, BLOCK_N, STEPS
    )
    if expert >= num_experts:
        return
    first_m = tl.min(rows, axis=0)
    both = tl.zeros([BLOCK_M, 2 * BLOCK_N], tl.float32)
    for start in range(0, depth, BLOCK_K):
        side = tl.reshape(matrices.load([expert, 0, first_n, start]), [2 * BLOCK_N, BLOCK_K])
        both = tl.dot(rows_of.load([first_m, start]), side.T, both)
    gate, up = tl.split(tl.permute(tl.reshape(both, [BLOCK_M, 2, BLOCK_N]), [0, 2, 1]))
    n = first_n + tl.arange(0, BLOCK_N)
    in_n = n < width
    if HAS_BIAS:
        gate += tl.load(bias + expert * 2 * width + n, mask=in_n, other=0.0).to(tl.float32)[None, :]
        up += tl.load(bias + expert * 2 * width + width + n, mask=in_n, other=0.0).to(tl.float32)[None, :]
    _keep_gated(gate, up, inner, rows, exists, n, width, ACTIVATION)


@triton.jit
def _grouped_down_kernel(
    rows_of, matrices, bias, pair_weights, parts, order, counts, starts, tile_ends, num_experts, width, depth,
    HAS_BIAS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STEPS: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """rows_of: a descriptor of [P, K] in tiles [M, K]; matrices: of [E, N, K] in tiles [1, N, K]"""
    if CHAINED:
        let_next_start()
        wait_for_last()
    expert, rows, exists, pairs, first_n = _tile_rows(
        width, order, counts, starts, tile_ends, num_experts, BLOCK_M, BLOCK_N, STEPS
    )
    if expert >= num_experts:
        return
    first_m = tl.min(rows, axis=0)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, depth, BLOCK_K):
        side = tl.reshape(matrices.load([expert, first_n, start]), [BLOCK_N, BLOCK_K])
        acc = tl.dot(rows_of.load([first_m, start]), side.T, acc)
    n = first_n + tl.arange(0, BLOCK_N)
    in_n = n < width
    if HAS_BIAS:
        acc += tl.load(bias + expert * width + n, mask=in_n, other=0.0).to(tl.float32)[None, :]
    _keep_part(acc, pair_weights, parts, pairs, exists, n, width)


def fits(x: torch.Tensor, gate_up: ExpertStack) -> bool:
    """Whether rows of both products lie as descriptors want them."""
    return x.element_size() == 2 and x.shape[1] % ALIGNED == 0 and gate_up.rows // 2 % ALIGNED == 0


def grouped_rows(pairs: int, experts: int) -> int | None:
    """Rows of a tile; None: so few that reading the weights bounds, and not how they are multiplied."""
    average = pairs / experts
    return None if average <= 24 else 64 if average <= 56 else 128


def grouped_parts(
    x: torch.Tensor,
    choices: int,
    weights: torch.Tensor,
    gate_up: ExpertStack,
    down: ExpertStack,
    gate_up_bias: torch.Tensor | None,
    down_bias: torch.Tensor | None,
    activation: str,
    found: SortedPairs,
    tiles: tuple[GroupedTiles, GroupedTiles] | None = None,
) -> torch.Tensor:
    """What each pair adds to its token. Shapes: x [T, hidden]; weights [T, A] -> [P, hidden]"""
    depth, pairs = x.shape[1], x.shape[0] * choices
    count, width = gate_up.num_experts, gate_up.rows // 2
    first, second = tiles or (GATE_UP[found.block_m], DOWN[found.block_m])
    chained, options = chains(x.device), launch(x.device)
    spread, inner = x.new_empty(pairs, depth), x.new_empty(pairs, width)
    parts = torch.empty_like(spread)
    block = min(1024, triton.next_power_of_2(depth))
    _spread_kernel[(pairs, triton.cdiv(depth, block))](
        x, spread, found.tensors[0], depth, choices, block, chained, num_warps=4, **options
    )
    steps = count.bit_length() + 1
    assert isinstance(gate_up.weight, torch.Tensor)
    assert isinstance(down.weight, torch.Tensor)
    gates = gate_up.weight.view(count, 2, width, depth)
    _grouped_gate_up_kernel[(found.tiles * triton.cdiv(width, first.block_n),)](
        TensorDescriptor.from_tensor(spread, [first.block_m, first.block_k]),
        TensorDescriptor.from_tensor(gates, [1, 2, first.block_n, first.block_k]),
        spread if gate_up_bias is None else gate_up_bias, inner, *found.tensors, count, width, depth,
        ACTIVATIONS[activation], gate_up_bias is not None,
        first.block_m, first.block_n, first.block_k, steps, chained,
        num_warps=first.warps, num_stages=first.stages, **options,
    )  # fmt: skip
    _grouped_down_kernel[(found.tiles * triton.cdiv(depth, second.block_n),)](
        TensorDescriptor.from_tensor(inner, [second.block_m, second.block_k]),
        TensorDescriptor.from_tensor(down.weight.view(count, depth, width), [1, second.block_n, second.block_k]),
        spread if down_bias is None else down_bias, weights, parts, *found.tensors, count, depth, width,
        down_bias is not None, second.block_m, second.block_n, second.block_k, steps, chained,
        num_warps=second.warps, num_stages=second.stages, **options,
    )  # fmt: skip
    return parts
