"""Dequantisers of the types below four bits, and of those that look numbers up; a part of gguf_blocks.py."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

# What four bits stand for, before the scale. Source: the ggml block layouts; E2M1 doubled, so that all are whole.
NONLINEAR = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
E2M1_DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


def half(blocks: Tensor, start: int) -> Tensor:
    """The fp16 scalar at a byte of each block -> [B, 1] float32."""
    return blocks[:, start : start + 2].contiguous().view(torch.float16).to(torch.float32)


def nibbles(packed: Tensor) -> Tensor:
    """[B, n] bytes -> [B, 2n]: all low nibbles, then all high ones."""
    return torch.cat((packed & 15, packed >> 4), dim=1)


def looked_up(codes: Tensor, table: tuple[int, ...]) -> Tensor:
    """Four-bit codes -> the table's numbers, float32."""
    return _table(table, codes.device)[codes.to(torch.int64)]


@cache
def _table(numbers: tuple[int, ...], device: torch.device) -> Tensor:
    """Kept, since a step that is being recorded on a device must copy nothing from the host."""
    return torch.tensor(numbers, dtype=torch.float32, device=device)


def shifted(packed: Tensor, step: int, count: int) -> Tensor:
    """[B, ..., n] bytes -> [B, ..., count, n]: each shifted right by 0, step, 2 step, ..."""
    shifts = torch.arange(0, step * count, step, dtype=torch.uint8, device=packed.device)
    return packed.unsqueeze(-2) >> shifts.unsqueeze(-1)


def q2_k(blocks: Tensor) -> Tensor:
    """Sixteen sub-blocks of 16: a four-bit scale and minimum each, two bits a number."""
    count = blocks.shape[0]
    packed = blocks[:, :16]
    scales = (half(blocks, 80) * (packed & 15).to(torch.float32)).unsqueeze(-1)
    minima = (half(blocks, 82) * (packed >> 4).to(torch.float32)).unsqueeze(-1)
    quants = (shifted(blocks[:, 16:80].reshape(count, 2, 32), 2, 4) & 3).reshape(count, 16, 16)
    return (scales * quants.to(torch.float32) - minima).reshape(count, 256)


def q3_k(blocks: Tensor) -> Tensor:
    quants, scales = q3_k_parts(blocks)
    return (scales.unsqueeze(-1) * quants).reshape(blocks.shape[0], 256)


def q3_k_parts(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Sixteen sub-blocks of 16: two bits and an inverted third one a number, and a six-bit scale each.

    Shapes: blocks [B, bytes] -> [B, 16, 16] float32, [B, 16] float32
    """
    count = blocks.shape[0]
    low = shifted(blocks[:, 96:104], 4, 2).reshape(count, 16) & 15
    high = shifted(blocks[:, 104:108], 2, 4).reshape(count, 16) & 3
    scales = half(blocks, 108) * ((low | (high << 4)).to(torch.float32) - 32.0)
    quants = (shifted(blocks[:, 32:96].reshape(count, 2, 32), 2, 4) & 3).reshape(count, 16, 16)
    missing = (shifted(blocks[:, :32], 1, 8) & 1 ^ 1).reshape(count, 16, 16) << 2
    return quants.to(torch.float32) - missing.to(torch.float32), scales


def iq4_nl(blocks: Tensor) -> Tensor:
    return half(blocks, 0) * looked_up(nibbles(blocks[:, 2:]), NONLINEAR)


def iq4_xs(blocks: Tensor) -> Tensor:
    """Eight sub-blocks of 32: a six-bit scale each, whose upper bits lie in one word."""
    count = blocks.shape[0]
    low = shifted(blocks[:, 4:8].unsqueeze(-1), 4, 2).reshape(count, 8) & 15
    high = shifted(blocks[:, 2:4].unsqueeze(-1), 2, 4).reshape(count, 8) & 3
    scales = half(blocks, 0) * ((low | (high << 4)).to(torch.float32) - 32.0)
    codes = nibbles(blocks[:, 8:].reshape(count * 8, 16)).reshape(count, 8, 32)
    return (scales.unsqueeze(-1) * looked_up(codes, NONLINEAR)).reshape(count, 256)


def mxfp4(blocks: Tensor) -> Tensor:
    exponents = blocks[:, :1].to(torch.int32)
    # Half of 2 ** (exponent - 127), which for the two lowest exponents is a denormal; the table is of doubled values.
    bits = torch.where(exponents < 2, 0x00200000 << exponents.clamp(max=1), (exponents - 1) << 23)
    return bits.view(torch.float32) * looked_up(nibbles(blocks[:, 1:]), E2M1_DOUBLED)
