"""A weight times a few activation rows: bound by reading the weight once, which this does near the memory's rate.

Few rows leave a matrix library's tiles mostly empty, and make it split K over programs with a second pass to add up.
Here a program owns some output columns for all of K. Every row is summed in the same order whatever their number.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from engine.quant.quant_tensor import QuantTensor

MAX_ROWS = 4
# Wide products of many rows: the library is 15 % faster when no tile is cut (8,000 against 8,192 rows on an H200).
PAD_ROWS = 256
PAD_FROM_ROWS = 1024
PAD_FROM_COLUMNS = 16384


@triton.jit
def _gemv_kernel(
    x, weight, bias, out, columns, depth,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    lanes = tl.arange(0, BLOCK_K)
    in_n = n < columns
    base = weight + n.to(tl.int64)[:, None] * depth
    first = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    second = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    third = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    fourth = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    for start in range(0, depth, BLOCK_K):
        k = start + lanes
        in_k = k < depth
        tile = tl.load(
            base + k[None, :], mask=in_n[:, None] & in_k[None, :], other=0.0, eviction_policy="evict_first"
        ).to(tl.float32)
        first += tile * tl.load(x + k, mask=in_k, other=0.0).to(tl.float32)[None, :]
        if ROWS > 1:
            second += tile * tl.load(x + depth + k, mask=in_k, other=0.0).to(tl.float32)[None, :]
        if ROWS > 2:
            third += tile * tl.load(x + 2 * depth + k, mask=in_k, other=0.0).to(tl.float32)[None, :]
        if ROWS > 3:
            fourth += tile * tl.load(x + 3 * depth + k, mask=in_k, other=0.0).to(tl.float32)[None, :]
    added = tl.zeros([BLOCK_N], tl.float32)
    if HAS_BIAS:
        added = tl.load(bias + n, mask=in_n, other=0.0).to(tl.float32)
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
    # Enough programs to fill the device, each with rows of K long enough to stream.
    block_n = 8 if columns >= 8192 and rows == 1 else 4
    _gemv_kernel[(triton.cdiv(columns, block_n),)](
        x.contiguous(), weight, weight if bias is None else bias, out, columns, depth,
        rows, block_n, 512, bias is not None, num_warps=4, num_stages=3,
    )  # fmt: skip
    return out


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """The kernel above for few rows, the matrix library for many.

    Shapes: x [M, K]; weight [N, K]; bias [N] -> [M, N]
    """
    rows = x.shape[0]
    if 0 < rows <= MAX_ROWS:
        return gemv(x, weight, bias)
    if rows >= PAD_FROM_ROWS and rows % PAD_ROWS and weight.shape[0] >= PAD_FROM_COLUMNS:
        padded = F.pad(x, (0, 0, 0, -rows % PAD_ROWS))
        return F.linear(padded, weight, bias)[:rows]
    return F.linear(x, weight, bias)


def pack(weight: torch.Tensor | QuantTensor) -> torch.Tensor:
    assert isinstance(weight, torch.Tensor), "only plain weights are offered this kernel"
    return weight.contiguous()
