"""RMSNorm, the residual's sum with it, SwiGLU and GeGLU, one pass each over memory."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.kernels.triton.chained import chains, launch, let_next_start, wait_for_last

MAX_WIDTH = 65536  # one program holds a row


@triton.jit
def _rms_norm_kernel(x, weight, out, x_stride, width, eps, BLOCK: tl.constexpr, CHAINED: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < width
    weights = tl.load(weight + columns, mask=mask, other=0.0).to(tl.float32)
    if CHAINED:
        let_next_start()
        wait_for_last()
    values = tl.load(x + row * x_stride + columns, mask=mask, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values, axis=0) / width + eps)
    tl.store(out + row * width + columns, (values * scale * weights).to(out.dtype.element_ty), mask=mask)


@triton.jit
def _add_rms_norm_kernel(x, residual, weight, out, total_out, width, eps, BLOCK: tl.constexpr, CHAINED: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < width
    weights = tl.load(weight + columns, mask=mask, other=0.0).to(tl.float32)
    if CHAINED:
        let_next_start()
        wait_for_last()
    place = row * width + columns
    added = tl.load(x + place, mask=mask, other=0.0) + tl.load(residual + place, mask=mask, other=0.0)
    tl.store(total_out + place, added, mask=mask)
    values = added.to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values, axis=0) / width + eps)
    tl.store(out + place, (values * scale * weights).to(out.dtype.element_ty), mask=mask)


@triton.jit
def gated(gate, up, GELU: tl.constexpr):
    """silu(gate) * up, or gelu(gate) * up by its tanh formula, in float32."""
    inner = gate
    if GELU:
        # 0.5 (1 + tanh y) is sigmoid(2 y): the tanh formula of gelu without a tanh
        inner = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
    return gate * tl.sigmoid(inner) * up


@triton.jit
def _gate_kernel(gate_up, out, width, GELU: tl.constexpr, BLOCK: tl.constexpr, CHAINED: tl.constexpr):
    if CHAINED:
        let_next_start()
        wait_for_last()
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < width
    gate = tl.load(gate_up + row * 2 * width + columns, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * width + width + columns, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row * width + columns, gated(gate, up, GELU).to(out.dtype.element_ty), mask=mask)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor | None = None) -> torch.Tensor:
    """Shapes: x [..., K], rows of one stride; weight [K] -> like x, contiguous. Mutates: out, if there is one"""
    width = x.shape[-1]
    rows = x if x.dim() == 2 and x.stride(1) == 1 else x.reshape(-1, width)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device) if out is None else out
    if rows.shape[0]:
        block = triton.next_power_of_2(width)
        _rms_norm_kernel[(rows.shape[0],)](
            rows, weight, out, rows.stride(0), width, eps, block, chains(x.device),
            num_warps=_warps(block), **launch(x.device),
        )  # fmt: skip
    return out


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Shapes: x, residual [T, K] contiguous; weight [K] -> (normed, new residual). Mutates: out, if there is one"""
    count, width = x.shape
    x, residual = x.contiguous(), residual.contiguous()
    out, total = torch.empty_like(x) if out is None else out, torch.empty_like(x)
    if count:
        block = triton.next_power_of_2(width)
        _add_rms_norm_kernel[(count,)](
            x, residual, weight, out, total, width, eps, block, chains(x.device),
            num_warps=_warps(block), **launch(x.device),
        )  # fmt: skip
    return out, total


def silu_mul(gate_up: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Shapes: gate_up [M, 2I] -> [M, I]. Mutates: out, if there is one"""
    return _gate(gate_up, False, out)


def gelu_mul(gate_up: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """gelu by its tanh formula. Shapes: gate_up [M, 2I] -> [M, I]. Mutates: out, if there is one"""
    return _gate(gate_up, True, out)


def _gate(gate_up: torch.Tensor, gelu: bool, out: torch.Tensor | None) -> torch.Tensor:
    gate_up = gate_up.contiguous()
    count, width = gate_up.shape[0], gate_up.shape[1] // 2
    if out is None:
        out = torch.empty(count, width, dtype=gate_up.dtype, device=gate_up.device)
    if count:
        block = min(1024, triton.next_power_of_2(width))
        _gate_kernel[(count, triton.cdiv(width, block))](
            gate_up, out, width, gelu, block, chains(out.device), num_warps=4, **launch(out.device)
        )
    return out


def _warps(block: int) -> int:
    return min(16, max(1, block // 512))
