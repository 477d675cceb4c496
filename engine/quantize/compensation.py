"""Rounding one column after the other, what each loses being made up for by those that are still to be rounded.

Source: GPTQ (ICLR'23), with the multipliers fixed before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from engine.quant.coded_tensor import CodedTensor
from engine.quant.encode import E4M3_MAX
from engine.quantize.products import Products

DAMPING = 0.01  # of the mean of the diagonal, so that inputs that never varied do no harm
# How much of what inputs have in common is not believed: a short text has about as many tokens as a layer has inputs.
SHRINKAGE = 0.3
COLUMNS_AT_ONCE = 64

# (column, its numbers [N] as they are now) -> the numbers it will be read as [N]
Rounder = Callable[[int, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Compensator:
    """Which of some neighbouring columns is rounded after which, and what those make up for that are left.

    Shapes: order [k] int64, the columns of the largest inputs first; inverse [k, k] float32, in that order
    """

    order: Tensor
    inverse: Tensor

    @classmethod
    def of(cls, moments: Products) -> Compensator:
        """moments: mean ones"""
        order = moments.squares().argsort(descending=True, stable=True)
        return cls(order, _upper_of_inverse(moments, order))


def compensated_to(nearest: CodedTensor, matrix: Tensor, compensators: Sequence[Compensator]) -> CodedTensor:
    """Other codes with the same multipliers and zero points, whose outputs are nearer. Rows are independent.

    nearest: fp8 or int8 with a multiplier a row, or int4 with zero points
    Shapes: matrix [N, K] float32; compensators of neighbouring columns, K in all
    """
    group, kind = nearest.group, nearest.kind
    scales = nearest.scales.to(torch.float32).T.contiguous()
    zeros = None if nearest.zeros is None else nearest.zeros.to(torch.float32).T.contiguous()
    codes = torch.empty(nearest.shape[1], nearest.shape[0], dtype=torch.uint8, device=matrix.device)

    def rounded(first: int, place: int, numbers: Tensor) -> Tensor:
        column = first + place
        scale = scales[column // group]
        found = numbers / scale
        if kind == "fp8":
            near = found.clamp_(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
            codes[column] = near.view(torch.uint8)
            return near.to(torch.float32).mul_(scale)
        if kind == "int8":
            whole = found.round_().clamp_(-127, 127)
            codes[column].view(torch.int8).copy_(whole)
            return whole.mul_(scale)
        assert zeros is not None
        zero = zeros[column // group]
        whole = found.round_().add_(zero).clamp_(0, 15)
        codes[column] = whole
        return whole.sub_(zero).mul_(scale)

    first = 0
    for part in compensators:
        end = first + len(part.order)
        compensated(matrix[:, first:end], part, partial(rounded, first))
        first = end
    if kind == "int4":
        codes = codes[0::2] | (codes[1::2] << 4)
    codes = codes.T.contiguous()
    return replace(nearest, codes=codes.view(torch.int8) if kind == "int8" else codes)


def compensated(matrix: Tensor, compensator: Compensator, rounder: Rounder) -> None:
    """Give each column to rounder as it is when its turn has come: those of the largest inputs first.

    So what costs most is rounded while most columns are left to make up for it.
    Shapes: matrix [N, K] float32
    """
    inverse, places = compensator.inverse, compensator.order.tolist()
    own = inverse.diagonal().tolist()
    left = matrix.T[compensator.order]  # columns as rows, which lie together
    for start in range(0, len(left), COLUMNS_AT_ONCE):
        part = left[start : start + COLUMNS_AT_ONCE]
        end = start + len(part)
        errors = torch.empty_like(part)
        for j, column in enumerate(part):
            torch.sub(column, rounder(places[start + j], column), out=errors[j])
            errors[j] /= own[start + j]
            part[j + 1 :] -= inverse[start + j, start + j + 1 : end].unsqueeze(1) * errors[j]
        left[end:].addmm_(inverse[start:end, end:].T, errors, alpha=-1)


def _upper_of_inverse(moments: Products, order: Tensor) -> Tensor:
    """The upper Cholesky factor of the inverse of the damped moments in that order.

    Each is let go of as the next is there: of a wide input one is as large as a layer's smaller matrices.
    """
    damped = moments.whole()
    size = damped.diagonal().mean().clamp_min(1e-12)
    damped = damped[order.unsqueeze(1), order]
    own = damped.diagonal().clone()
    damped *= 1.0 - SHRINKAGE
    damped.diagonal().copy_((1.0 - SHRINKAGE) * own + SHRINKAGE * own + DAMPING * size)
    # Columns lie together, as the routines want them: else each would work in a copy.
    wide = torch.empty(damped.shape, dtype=torch.float64, device=damped.device).mT.copy_(damped)
    del damped
    torch.linalg.cholesky(wide, out=wide)
    torch.cholesky_inverse(wide, out=wide)
    torch.linalg.cholesky(wide, upper=True, out=wide)
    return wide.to(torch.float32, memory_format=torch.contiguous_format)
