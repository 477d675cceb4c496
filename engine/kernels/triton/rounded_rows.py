"""Activations rounded to what E4M3 holds, as numbers: what kernels for few rows read where more rows become codes.

The multipliers of quantise_rows are powers of two, so rounding does not depend on them: a number keeps its first four
binary digits, whatever its row. Only what is below 2 ** -14 of its row's largest is held more nearly here than there,
by at most 2 ** -17 of that.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.kernels.triton.chained import chains, launch, let_next_start, wait_for_last
from engine.kernels.triton.norms import gated

BLOCK = 1024
PLAIN, SILU, GELU = 0, 1, 2
GATES = {"silu": SILU, "gelu_tanh": GELU}


@triton.jit
def four_digits(values):
    """The nearest float32 of four binary digits, ties to even; what is not finite stays."""
    bits = values.to(tl.int32, bitcast=True)
    nearest = (bits + 0x7FFFF + ((bits >> 20) & 1)) & -0x100000
    return tl.where(tl.abs(values) < float("inf"), nearest.to(tl.float32, bitcast=True), values)


@triton.jit
def _round_kernel(x, out, x_stride, width, GATE: tl.constexpr, BLOCK: tl.constexpr, CHAINED: tl.constexpr):
    """GATE: 0 takes rows, 1 and 2 the silu or gelu gate of rows twice as wide, rounded as it is stored before."""
    if CHAINED:
        let_next_start()
        wait_for_last()
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < width
    values = tl.load(x + row * x_stride + columns, mask=mask, other=0.0).to(tl.float32)
    if GATE:
        up = tl.load(x + row * x_stride + width + columns, mask=mask, other=0.0).to(tl.float32)
        values = gated(values, up, GATE == 2).to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + row * width + columns, four_digits(values).to(out.dtype.element_ty), mask=mask)


@triton.jit
def _round_norm_kernel(
    x, residual, weight, out, total_out, width, eps, ADDED: tl.constexpr, BLOCK: tl.constexpr, CHAINED: tl.constexpr
):
    """A program a row. ADDED: the residual is added before, and the sum stored."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < width
    weights = tl.load(weight + columns, mask=mask, other=0.0).to(tl.float32)
    if CHAINED:
        let_next_start()
        wait_for_last()
    place = row * width + columns
    values = tl.load(x + place, mask=mask, other=0.0)
    if ADDED:
        values += tl.load(residual + place, mask=mask, other=0.0)
        tl.store(total_out + place, values, mask=mask)
    values = values.to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values, axis=0) / width + eps)
    normed = (values * scale * weights).to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + place, four_digits(normed).to(out.dtype.element_ty), mask=mask)


def rounded(x: torch.Tensor) -> torch.Tensor:
    """Shapes: x [M, K] -> like it"""
    return _rounded(x, PLAIN, x.shape[1])


def rounded_gate(gate_up: torch.Tensor, activation: str) -> torch.Tensor:
    """Shapes: gate_up [M, 2I] -> [M, I]"""
    return _rounded(gate_up, GATES[activation], gate_up.shape[1] // 2)


def _rounded(x: torch.Tensor, gate: int, width: int) -> torch.Tensor:
    x = x.contiguous()
    out = torch.empty(x.shape[0], width, dtype=x.dtype, device=x.device)
    if x.shape[0]:
        block = min(BLOCK, triton.next_power_of_2(width))
        _round_kernel[(x.shape[0], triton.cdiv(width, block))](
            x, out, x.shape[1], width, gate, block, chains(x.device), num_warps=4, **launch(x.device)
        )
    return out


def rounded_norm(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Of x, or of its sum with the residual, and that sum. Shapes: x, residual [M, K]; weight [K]"""
    x = x.contiguous()
    out = torch.empty_like(x)
    total = None if residual is None else torch.empty_like(x)
    if x.shape[0]:
        block = triton.next_power_of_2(x.shape[1])
        _round_norm_kernel[(x.shape[0],)](
            x, x if residual is None else residual.contiguous(), weight, out, x if total is None else total,
            x.shape[1], eps, residual is not None, block, chains(x.device),
            num_warps=min(16, max(1, block // 512)), **launch(x.device),
        )  # fmt: skip
    return out, total
