"""Norms and gates whose output goes to one projection: they write its codes where its kernel would make them anyway."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from engine.layers.linear import CodedRows, Linear


def norm_into(
    rms_norm: Callable[[Tensor, Tensor, float], Tensor], linear: Linear | None, x: Tensor, weight: Tensor, eps: float
) -> Tensor | CodedRows:
    """linear: what alone reads the result; None: several do, or it is not known. Shapes: x [T, K]; weight [K]"""
    part = None if linear is None else linear.coding_part(x.shape[0])
    if part is None or part.codes is None:
        return rms_norm(x, weight, eps)
    codes, _ = part.codes.norm(x, None, weight, eps, part.packed)
    return CodedRows(codes, (x.shape[0], x.shape[1]))


def add_norm_into(
    add_rms_norm: Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]],
    linear: Linear | None,
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float,
) -> tuple[Tensor | CodedRows, Tensor]:
    """-> (normed, new residual). Shapes: x, residual [T, K]; weight [K]"""
    part = None if linear is None else linear.coding_part(x.shape[0])
    if part is None or part.codes is None:
        return add_rms_norm(x, residual, weight, eps)
    codes, total = part.codes.norm(x, residual, weight, eps, part.packed)
    return CodedRows(codes, (x.shape[0], x.shape[1])), total


def gate_into(gate: Callable[[Tensor], Tensor], activation: str, linear: Linear, gate_up: Tensor) -> Tensor | CodedRows:
    """Shapes: gate_up [T, 2I]"""
    part = linear.coding_part(gate_up.shape[0])
    if part is None or part.codes is None:
        return gate(gate_up)
    codes = part.codes.gate(gate_up, activation, part.packed)
    return CodedRows(codes, (gate_up.shape[0], gate_up.shape[1] // 2))
