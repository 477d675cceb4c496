"""A weight matrix as layers handle it: plain numbers, or rows of quantised blocks."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.quant.quant_tensor import QuantTensor, concatenate_rows, stack_bytes, take_bytes

Weight = QuantTensor | Tensor

KIND_OF_DTYPE = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


def kind_of(weight: Weight) -> str:
    return weight.kind if isinstance(weight, QuantTensor) else KIND_OF_DTYPE[weight.dtype]


def stack_rows(parts: list[Weight]) -> Weight:
    """One matrix with the rows of all parts, which must agree in kind; a single part is given back as it is."""
    if len(parts) == 1:
        return parts[0]
    quantised = [p for p in parts if isinstance(p, QuantTensor)]
    if quantised:
        assert len(quantised) == len(parts)
        return concatenate_rows(quantised)
    plain = [p for p in parts if isinstance(p, Tensor)]
    return stack_bytes([p.view(torch.uint8) for p in plain]).view(plain[0].dtype)


def take_rows(weight: Weight, rows: Tensor) -> Weight:
    """The rows listed, in that order; copies."""
    if isinstance(weight, QuantTensor):
        return QuantTensor(weight.kind, take_bytes(weight.data, rows), (len(rows), weight.shape[1]))
    return take_bytes(weight.view(torch.uint8), rows).view(weight.dtype)


def narrowed(weight: Weight, device: torch.device, dtype: torch.dtype) -> Weight:
    """On its device: quantised as it is, plain no wider than dtype."""
    if isinstance(weight, QuantTensor):
        return weight.to(device)
    keep = weight.dtype.itemsize < dtype.itemsize or weight.dtype == dtype
    return weight.to(device) if keep else weight.to(device=device, dtype=dtype)


def numbers(weight: Weight) -> Tensor:
    """All of a small weight, decoded."""
    return weight.dequantize() if isinstance(weight, QuantTensor) else weight


def half_style_rows(num_heads: int, head_dim: int, rotary_dim: int | None = None, first: int = 0) -> Tensor:
    """Row order that undoes the interleaved storage of rotary projections.

    Stored row (head, pair, half) becomes (head, half, pair), so that dimension i turns with i + rotary_dim/2.
    rotary_dim: dimensions of a head that rotate, from first on; None: all of them
    """
    rotary_dim = rotary_dim or head_dim
    end = first + rotary_dim
    heads = torch.arange(num_heads * head_dim).reshape(num_heads, head_dim)
    turned = heads[:, first:end].reshape(num_heads, rotary_dim // 2, 2).transpose(1, 2).reshape(num_heads, -1)
    return torch.cat((heads[:, :first], turned, heads[:, end:]), dim=1).reshape(-1)
