"""Plain torch truth of the gates of MLPs, of choosing experts and of computing them; a part of reference.py."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.quant.coded_tensor import CodedTensor
from engine.quant.expert_stack import ExpertStack
from engine.quant.quant_tensor import QuantTensor

CAPTURED_ROWS = 512  # a step of at most so many rows may be recorded on an accelerator, so it must not ask the device
CLAMP, CLAMPED_SLOPE = 7.0, 1.702  # of swiglu_clamped


def gelu_mul(gate_up: Tensor) -> Tensor:
    """gelu(gate) * up, gelu by its tanh formula.

    Shapes: gate_up [M, 2I], the gate's columns first -> [M, I]
    """
    gate, up = gate_up.chunk(2, dim=-1)
    return F.gelu(gate, approximate="tanh") * up


def clamped_swiglu(gate_up: Tensor) -> Tensor:
    """gate * sigmoid(1.702 gate) * (up + 1), the gate at most 7 and up within 7 of zero.

    Shapes: gate_up [M, 2I], the gate's columns first -> [M, I]
    """
    gate, up = gate_up.chunk(2, dim=-1)
    gate, up = gate.clamp(max=CLAMP), up.clamp(-CLAMP, CLAMP)
    return gate * torch.sigmoid(gate * CLAMPED_SLOPE) * (up + 1)


def gated(gate_up: Tensor, activation: str) -> Tensor:
    """The gate's function named activation, times up. Shapes: gate_up [M, 2I] -> [M, I]"""
    if activation == "silu":
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate) * up
    return {"gelu_tanh": gelu_mul, "swiglu_clamped": clamped_swiglu}[activation](gate_up)


def route(
    logits: Tensor,
    count: int,
    score: str = "softmax",
    normalise: bool = True,
    scale: float = 1.0,
    correction: Tensor | None = None,
    groups: int = 1,
    groups_kept: int = 1,
    group_top: int = 2,
) -> tuple[Tensor, Tensor]:
    """Choose each token's experts. No host sync.

    score: "softmax" or "sigmoid" of the logits. correction is added for the choice alone. With groups, only experts of
    the groups_kept best groups are taken; a group is as good as the sum of its group_top best experts.

    Shapes: logits [T, E]; correction [E] -> ids [T, count] int32, weights [T, count] float32, the largest first
    """
    wide = logits.to(torch.float32)
    scores = torch.sigmoid(wide) if score == "sigmoid" else torch.softmax(wide, dim=-1)
    ranked = scores if correction is None else scores + correction
    if groups > 1:
        grouped = ranked.view(-1, groups, ranked.shape[-1] // groups)
        worth = grouped.topk(group_top, dim=-1).values.sum(dim=-1)  # [T, groups]
        kept = torch.zeros_like(worth).scatter_(-1, worth.topk(groups_kept, dim=-1).indices, 1.0)
        ranked = grouped.masked_fill(kept.unsqueeze(-1) == 0, float("-inf")).flatten(-2)
    ids = ranked.topk(count, dim=-1).indices
    weights = scores.gather(-1, ids)
    if normalise:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return ids.to(torch.int32), weights * scale


def experts(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    gate_up: ExpertStack,
    down: ExpertStack,
    gate_up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
    activation: str = "silu",
) -> Tensor:
    """The weighted sum of each token's experts. On a CPU only the experts that are asked for are read.

    Shapes: x [T, K]; ids [T, A] int32; weights [T, A] float32; gate_up: E of [2I, K], the gate's rows first; down: E of
        [K, I]; gate_up_bias [E, 2I]; down_bias [E, K] -> [T, K] in x's dtype
    """
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    ask = asks_device(x)

    def one(expert: int, rows: Tensor) -> Tensor:
        inner = _matmul(rows, gate_up.of(expert), None if gate_up_bias is None else gate_up_bias[expert])
        last = _matmul(gated(inner, activation), down.of(expert), None if down_bias is None else down_bias[expert])
        return last.to(torch.float32)

    for expert in range(gate_up.num_experts):
        chosen = ids == expert
        if not ask:
            out += one(expert, x) * (weights * chosen).sum(dim=-1, keepdim=True)
            continue
        token, place = torch.where(chosen)
        if token.numel():
            out.index_add_(0, token, one(expert, x[token]) * weights[token, place].unsqueeze(-1))
    return out.to(x.dtype)


def asks_device(x: Tensor) -> bool:
    """Whether experts may look which ones were chosen. Else it computes all of them for every token."""
    return x.device.type == "cpu" or x.shape[0] > CAPTURED_ROWS


def _matmul(x: Tensor, weight: QuantTensor | CodedTensor | Tensor, bias: Tensor | None) -> Tensor:
    decoded = weight if isinstance(weight, Tensor) else weight.dequantize()
    return F.linear(x, decoded.to(x.dtype), None if bias is None else bias.to(x.dtype))
