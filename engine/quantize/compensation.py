"""Rounding one column after the other, what each loses being made up for by those that are still to be rounded.

Source: GPTQ (ICLR'23), with the multipliers fixed before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from engine.quant.coded_tensor import CodedTensor
from engine.quant.encode import E4M3_MAX

DAMPING = 0.01  # of the mean of the diagonal, so that inputs that never varied do no harm
# How much of what inputs have in common is not believed: a short text has about as many tokens as a layer has inputs.
SHRINKAGE = 0.3
COLUMNS_AT_ONCE = 64

# (column, its numbers [N, 1] as they are now) -> the numbers it will be read as [N, 1]
Rounder = Callable[[int, Tensor], Tensor]


def compensated_to(nearest: CodedTensor, matrix: Tensor, moments: Sequence[Tensor]) -> CodedTensor:
    """Other codes with the same multipliers and zero points, whose outputs are nearer.

    nearest: fp8 or int8 with a multiplier a row, or int4 with zero points
    Shapes: matrix [N, K] float32; moments [k, k] each, of neighbouring columns, K in all
    """
    group = nearest.group
    scales = nearest.scales.to(torch.float32)
    codes = torch.empty(nearest.shape, dtype=torch.uint8, device=matrix.device)

    def rounder(column: int, numbers: Tensor) -> Tensor:
        scale = scales[:, column // group].unsqueeze(1)
        if nearest.kind == "fp8":
            found = (numbers / scale).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
            codes[:, column] = found.view(torch.uint8)[:, 0]
            return found.to(torch.float32) * scale
        if nearest.kind == "int8":
            whole = (numbers / scale).round().clamp(-127, 127)
            codes[:, column] = whole.to(torch.int8).view(torch.uint8)[:, 0]
            return whole * scale
        assert nearest.zeros is not None
        zero = nearest.zeros[:, column // group].unsqueeze(1).to(torch.float32)
        whole = ((numbers / scale).round() + zero).clamp(0, 15)
        codes[:, column] = whole.to(torch.uint8)[:, 0]
        return (whole - zero) * scale

    first = 0
    for part in moments:
        compensated(matrix[:, first : first + len(part)], part, partial(_from, first, rounder))
        first += len(part)
    if nearest.kind == "int4":
        return replace(nearest, codes=codes[:, 0::2] | (codes[:, 1::2] << 4))
    return replace(nearest, codes=codes if nearest.kind == "fp8" else codes.view(torch.int8))


def _from(first: int, rounder: Rounder, column: int, numbers: Tensor) -> Tensor:
    return rounder(first + column, numbers)


def compensated(matrix: Tensor, moments: Tensor, rounder: Rounder) -> None:
    """Give each column to rounder as it is when its turn has come: those of the largest inputs first.

    So what costs most is rounded while most columns are left to make up for it.
    Shapes: matrix [N, K] float32; moments [K, K], the inputs' mean products
    """
    order = moments.diagonal().argsort(descending=True, stable=True)
    places = order.tolist()
    inverse = _upper_of_inverse(moments, order)
    left = matrix[:, order]
    columns = matrix.shape[1]
    for start in range(0, columns, COLUMNS_AT_ONCE):
        end = min(start + COLUMNS_AT_ONCE, columns)
        part, errors = left[:, start:end].clone(), torch.empty_like(left[:, start:end])
        for j in range(end - start):
            column = part[:, j : j + 1]
            errors[:, j] = (column - rounder(places[start + j], column))[:, 0] / inverse[start + j, start + j]
            part[:, j + 1 :] -= errors[:, j : j + 1] * inverse[start + j, start + j + 1 : end]
        left[:, end:] -= errors @ inverse[start:end, end:]


def _upper_of_inverse(moments: Tensor, order: Tensor) -> Tensor:
    """The upper Cholesky factor of the inverse of the damped moments in that order.

    Each is let go of as the next is there: of a wide input one is larger than a layer's weights.
    """
    size = moments.diagonal().mean().clamp_min(1e-12)
    damped = moments[order.unsqueeze(1), order]
    own = damped.diagonal().clone()
    damped *= 1.0 - SHRINKAGE
    damped.diagonal().copy_((1.0 - SHRINKAGE) * own + SHRINKAGE * own + DAMPING * size)
    wide = damped.to(torch.float64)
    del damped
    torch.linalg.cholesky(wide, out=wide)
    torch.cholesky_inverse(wide, out=wide)
    torch.linalg.cholesky(wide, upper=True, out=wide)
    return wide.to(torch.float32)
