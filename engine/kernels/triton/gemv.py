"""A weight times a few activation rows: bound by reading the weight once, which this does near the memory's rate.

Few rows leave a matrix library's tiles mostly empty, and make it split K over programs with a second pass to add up.
Here a program owns some output columns for all of K. Every row is summed in the same order whatever their number.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from engine.kernels.triton.chained import chains, launch, let_next_start, wait_for_last
from engine.quant.quant_tensor import QuantTensor

MAX_ROWS = 4
BLOCK_N = 2
# Wide products of many rows: the library is 15 % faster when no tile is cut (8,000 against 8,192 rows on an H200).
PAD_ROWS = 256
PAD_FROM_ROWS = 1024
PAD_FROM_COLUMNS = 16384


@triton.jit
def _gemv_kernel(
    x, weight, bias, out, columns, depth: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, HAS_BIAS: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    lanes = tl.arange(0, BLOCK_K)
    in_n = n < columns
    # What is beyond the last column is computed again, and not stored.
    base = weight + tl.minimum(n, columns - 1).to(tl.int64)[:, None] * depth
    EVEN: tl.constexpr = depth % BLOCK_K == 0
    if EVEN:
        following = tl.load(base + lanes[None, :], eviction_policy="evict_first")
    else:
        following = tl.load(base + lanes[None, :], mask=(lanes < depth)[None, :], other=0.0)
    added = tl.zeros([BLOCK_N], tl.float32)
    if HAS_BIAS:
        added = tl.load(bias + n, mask=in_n, other=0.0).to(tl.float32)
    if CHAINED:
        let_next_start()
        wait_for_last()
    first = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    second = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    third = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    fourth = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    for start in range(0, depth, BLOCK_K):
        tile = following.to(tl.float32)
        k = start + lanes
        # The next tile is on its way while this one is used.
        beyond = k + BLOCK_K < depth
        following = tl.load(
            base + (k + BLOCK_K)[None, :], mask=beyond[None, :], other=0.0, eviction_policy="evict_first"
        )
        if EVEN:
            in_k = k >= 0
        else:
            in_k = k < depth
        first += tile * tl.load(x + k, mask=in_k, other=0.0).to(tl.float32)[None, :]
        if ROWS > 1:
            second += tile * tl.load(x + depth + k, mask=in_k, other=0.0).to(tl.float32)[None, :]
        if ROWS > 2:
            third += tile * tl.load(x + 2 * depth + k, mask=in_k, other=0.0).to(tl.float32)[None, :]
        if ROWS > 3:
            fourth += tile * tl.load(x + 3 * depth + k, mask=in_k, other=0.0).to(tl.float32)[None, :]
    tl.store(out + n, (tl.sum(first, axis=1) + added).to(out.dtype.element_ty), mask=in_n)
    if ROWS > 1:
        tl.store(out + columns + n, (tl.sum(second, axis=1) + added).to(out.dtype.element_ty), mask=in_n)
    if ROWS > 2:
        tl.store(out + 2 * columns + n, (tl.sum(third, axis=1) + added).to(out.dtype.element_ty), mask=in_n)
    if ROWS > 3:
        tl.store(out + 3 * columns + n, (tl.sum(fourth, axis=1) + added).to(out.dtype.element_ty), mask=in_n)


def gemv(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Shapes: x [M, K], M from 1 to 4; weight [N, K] contiguous; bias [N] -> [M, N]"""
    rows, depth = x.shape
    columns = weight.shape[0]
    out = torch.empty(rows, columns, dtype=x.dtype, device=x.device)
    # The same tile for any number of rows, so that a row's sum has one order.
    block_k = min(1024, triton.next_power_of_2(depth))
    _gemv_kernel[(triton.cdiv(columns, BLOCK_N),)](
        x.contiguous(), weight, weight if bias is None else bias, out, columns, depth,
        rows, BLOCK_N, block_k, bias is not None, chains(x.device), num_warps=2, **launch(x.device),
    )  # fmt: skip
    return out


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """The kernel above for few rows, the matrix library for many.

    Shapes: x [M, K]; weight [N, K]; bias [N] -> [M, N]
    """
    rows = x.shape[0]
    if 0 < rows <= MAX_ROWS:
        return gemv(x, weight, bias)
    if pads(rows, weight):
        return F.linear(F.pad(x, (0, 0, 0, -rows % PAD_ROWS)), weight, bias)[:rows]
    return F.linear(x, weight, bias)


def pads(rows: int, weight: torch.Tensor) -> bool:
    """Whether rows of zeros behind make the library's product faster."""
    return rows >= PAD_FROM_ROWS and rows % PAD_ROWS != 0 and weight.shape[0] >= PAD_FROM_COLUMNS


def pack(weight: torch.Tensor | QuantTensor) -> torch.Tensor:
    assert isinstance(weight, torch.Tensor), "only plain weights are offered this kernel"
    return weight.contiguous()
