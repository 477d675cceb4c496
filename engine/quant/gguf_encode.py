"""Plain numbers rounded to the GGUF kinds that the CPU's kernels read. Rows are independent; ties go to even."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.quant.quant_tensor import QuantTensor

BLOCK = 32
TINY = 2.0**-24  # the least float16, in place of the scale of zeros
# By kind: what the float16 numbers before a block's codes multiply at most, and from which largest product on in a row
# their rounding counts for less than that of the codes.
REACH: dict[str, tuple[tuple[float, ...], float]] = {"Q8_0": ((127.0,), 2.0**-10), "Q4_1": ((15.0, 1.0), 2.0**-15)}


def q8_0(numbers: Tensor) -> QuantTensor:
    """Shapes: numbers [N, K] float32, K a multiple of 32 -> (N, K)"""
    blocks = numbers.reshape(numbers.shape[0], -1, BLOCK)
    scales = (blocks.abs().amax(dim=-1, keepdim=True) / 127.0).to(torch.float16).clamp_min(TINY)
    codes = (blocks / scales.float()).round().clamp(-127, 127).to(torch.int8)
    return _rows("Q8_0", numbers, scales.view(torch.uint8), codes.view(torch.uint8))


def q4_1(numbers: Tensor) -> QuantTensor:
    """Shapes: numbers [N, K] float32, K a multiple of 32 -> (N, K)"""
    blocks = numbers.reshape(numbers.shape[0], -1, BLOCK)
    low, high = blocks.amin(dim=-1, keepdim=True).to(torch.float16), blocks.amax(dim=-1, keepdim=True)
    scales = ((high - low.float()) / 15.0).to(torch.float16).clamp_min(TINY)
    codes = ((blocks - low.float()) / scales.float()).round().clamp(0, 15).to(torch.uint8)
    packed = codes[..., : BLOCK // 2] | (codes[..., BLOCK // 2 :] << 4)
    return _rows("Q4_1", numbers, scales.view(torch.uint8), low.view(torch.uint8), packed)


def is_near(held: QuantTensor, numbers: Tensor) -> bool:
    """Whether float16 holds the multipliers of each row; not of one whose numbers are all very small, or very large.

    Shapes: numbers [N, K], what held was made of
    """
    reach, least = REACH[held.kind]
    heads = held.data.view(held.shape[0], held.shape[1] // BLOCK, -1)[..., : 2 * len(reach)].contiguous()
    largest = (heads.view(torch.float16).to(torch.float32).abs() * torch.tensor(reach)).amax(dim=(1, 2))
    small = largest < least
    return bool(largest.isfinite().all()) and not bool(small.any() and numbers[small].any())


def _rows(kind: str, numbers: Tensor, *fields: Tensor) -> QuantTensor:
    rows, columns = numbers.shape
    return QuantTensor(kind, torch.cat(fields, dim=-1).reshape(rows, -1), (rows, columns))
