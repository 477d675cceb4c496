"""A weight matrix as layers handle it: plain numbers, rows of quantised blocks, or codes beside their scales."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from engine.devices.upload import upload
from engine.quant.coded_tensor import CodedTensor, stack_coded, stackable
from engine.quant.quant_tensor import QuantTensor, concatenate_rows, stack_bytes, take_bytes

Weight = QuantTensor | CodedTensor | Tensor

TILE_ELEMENTS = 1 << 21  # decoded at once: 8 MiB of float32
KIND_OF_DTYPE = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


def kind_of(weight: Weight) -> str:
    """What kernels are asked for: a name of engine.ggml_types, of CODED_KINDS, or "int8_mixed" with outlier columns."""
    if isinstance(weight, CodedTensor):
        return weight.kind if weight.outliers is None else f"{weight.kind}_mixed"
    return weight.kind if isinstance(weight, QuantTensor) else KIND_OF_DTYPE[weight.dtype]


def together(first: Weight, second: Weight) -> bool:
    """Whether the rows of both may be one matrix, so that one kernel call serves them."""
    if isinstance(first, CodedTensor) and isinstance(second, CodedTensor):
        return stackable(first, second)
    return kind_of(first) == kind_of(second)


def stack_rows(parts: list[Weight]) -> Weight:
    """One matrix with the rows of all parts, which must be alike; a single part is given back as it is."""
    if len(parts) == 1:
        return parts[0]
    coded = [p for p in parts if isinstance(p, CodedTensor)]
    if coded:
        assert len(coded) == len(parts)
        return stack_coded(coded)
    quantised = [p for p in parts if isinstance(p, QuantTensor)]
    if quantised:
        assert len(quantised) == len(parts)
        return concatenate_rows(quantised)
    plain = [p for p in parts if isinstance(p, Tensor)]
    return stack_bytes([p.view(torch.uint8) for p in plain]).view(plain[0].dtype)


def take_rows(weight: Weight, rows: Tensor) -> Weight:
    """The rows listed, in that order; copies."""
    if isinstance(weight, CodedTensor):
        return weight.take(rows)
    if isinstance(weight, QuantTensor):
        return QuantTensor(weight.kind, take_bytes(weight.data, rows), (len(rows), weight.shape[1]))
    return take_bytes(weight.view(torch.uint8), rows).view(weight.dtype)


def narrowed(weight: Weight, device: torch.device, dtype: torch.dtype) -> Weight:
    """On its device: quantised as it is, plain no wider than dtype."""
    placed = on_device(weight, device)
    if not isinstance(placed, Tensor) or placed.dtype.itemsize < dtype.itemsize:
        return placed
    return placed.to(dtype)


def on_device(weight: Weight, device: torch.device) -> Weight:
    """The same there. Blocks: until a mapped file's bytes have been read."""
    if isinstance(weight, CodedTensor):
        return replace(weight, codes=upload(weight.codes, device)).to(device)
    if isinstance(weight, QuantTensor):
        return QuantTensor(weight.kind, upload(weight.data, device), weight.shape)
    return upload(weight, device)


def numbers(weight: Weight) -> Tensor:
    """All of a small weight, decoded."""
    return weight if isinstance(weight, Tensor) else weight.dequantize()


def device_of(weight: Weight) -> torch.device:
    if isinstance(weight, CodedTensor):
        return weight.codes.device
    return weight.data.device if isinstance(weight, QuantTensor) else weight.device


def decoded(weight: Weight, dtype: torch.dtype) -> Tensor:
    """All of a weight, decoded some rows at a time and kept in dtype."""
    if isinstance(weight, Tensor):
        return weight.to(dtype)
    rows, columns = weight.shape
    out = torch.empty(rows, columns, dtype=dtype, device=device_of(weight))
    step = max(1, TILE_ELEMENTS // columns)
    for start in range(0, rows, step):
        out[start : start + step] = weight.dequantize(slice(start, start + step))
    return out


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
