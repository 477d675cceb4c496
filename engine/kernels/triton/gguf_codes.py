"""GGUF blocks whose codes or multipliers are in pieces, put together as codes, multipliers and zero points.

Kernels then read them as they read the simple blocks: four bits where a block's codes have at most four, else eight. A
block's own multiplier and its sub-blocks' become one float32 number each, so that nothing is rounded twice: Q4_K takes
6 bits a number on a device, Q6_K 10.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from engine.ggml_types import TYPE_BY_NAME
from engine.quant.gguf_blocks import fifth_bits, k_nibbles, k_scales
from engine.quant.low_bits import NONLINEAR, half, looked_up, nibbles, q3_k_parts, shifted

# Numbers [B, n] as int16, multipliers [B, G] float32, and what is taken away from their product [B, G], or None.
Parts = tuple[Tensor, Tensor, Tensor | None]

HALF_BYTE_KINDS = ("Q2_K", "Q3_K", "Q4_K")
TILE_NUMBERS = 1 << 24  # put together at once: some hundreds of MiB on their way
_LOWEST = {"Q3_K": -8}  # numbers of half bytes: from here on 16 of them


def _affine(blocks: Tensor, quants: Tensor) -> Parts:
    scales, minima = k_scales(blocks[:, 4:16])
    scale = half(blocks, 0) * scales.squeeze(-1)
    return quants.reshape(len(blocks), 256), scale, half(blocks, 2) * minima.squeeze(-1)


def _q4_k(blocks: Tensor) -> Parts:
    return _affine(blocks, k_nibbles(blocks[:, 16:144]).to(torch.int16))


def _q5_k(blocks: Tensor) -> Parts:
    high = (shifted(blocks[:, 16:48], 1, 8) & 1) << 4
    return _affine(blocks, (k_nibbles(blocks[:, 48:176]) | high).to(torch.int16))


def _q6_k(blocks: Tensor) -> Parts:
    low = blocks[:, :128].reshape(-1, 2, 1, 64)
    low = torch.cat((low & 15, low >> 4), dim=2).reshape(-1, 2, 4, 32)
    high = shifted(blocks[:, 128:192].reshape(-1, 2, 32), 2, 4) & 3
    quants = (low | (high << 4)).to(torch.int16).reshape(len(blocks), 256) - 32
    return quants, half(blocks, 208) * blocks[:, 192:208].contiguous().view(torch.int8).to(torch.float32), None


def _q2_k(blocks: Tensor) -> Parts:
    packed = blocks[:, :16]
    quants = (shifted(blocks[:, 16:80].reshape(-1, 2, 32), 2, 4) & 3).reshape(len(blocks), 256)
    scale, least = (half(blocks, at) * part.to(torch.float32) for at, part in ((80, packed & 15), (82, packed >> 4)))
    return quants.to(torch.int16), scale, least


def _q3_k(blocks: Tensor) -> Parts:
    quants, scales = q3_k_parts(blocks)
    return quants.reshape(len(blocks), 256).to(torch.int16), scales, None


def _q5_0(blocks: Tensor) -> Parts:
    return (nibbles(blocks[:, 6:]) | fifth_bits(blocks[:, 2:6])).to(torch.int16) - 16, half(blocks, 0), None


def _q5_1(blocks: Tensor) -> Parts:
    quants = (nibbles(blocks[:, 8:]) | fifth_bits(blocks[:, 4:8])).to(torch.int16)
    return quants, half(blocks, 0), -half(blocks, 2)


def _iq4_nl(blocks: Tensor) -> Parts:
    return looked_up(nibbles(blocks[:, 2:]), NONLINEAR).to(torch.int16), half(blocks, 0), None


def _iq4_xs(blocks: Tensor) -> Parts:
    low = shifted(blocks[:, 4:8].unsqueeze(-1), 4, 2).reshape(-1, 8) & 15
    high = shifted(blocks[:, 2:4].unsqueeze(-1), 2, 4).reshape(-1, 8) & 3
    scales = half(blocks, 0) * ((low | (high << 4)).to(torch.float32) - 32.0)
    codes = nibbles(blocks[:, 8:].reshape(-1, 16))
    return looked_up(codes, NONLINEAR).reshape(len(blocks), 256).to(torch.int16), scales, None


SPLIT: dict[str, Callable[[Tensor], Parts]] = {
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
}


def put_together(kind: str, rows: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Codes as CodedWeight has them, multipliers and zero points of groups, float32.

    Shapes: rows [N, row bytes] uint8 -> codes [N, K] int8 or [N, K/2] uint8; multipliers, zero points [N, G]
    """
    stored = TYPE_BY_NAME[kind]
    count, numbers = rows.shape[0], rows.shape[1] // stored.block_bytes * stored.block_elements
    step = max(1, TILE_NUMBERS // numbers)
    tiles = [_tile(kind, rows[at : at + step], stored.block_bytes) for at in range(0, count, step)]
    codes, scales, zeros = zip(*tiles, strict=True)
    whole = [zero for zero in zeros if zero is not None]
    if not whole:
        return torch.cat(codes), torch.cat(scales), None
    # Kernels take a row of one group to have no zero points: then it has two.
    twice = 2 if scales[0].shape[1] == 1 else 1
    multipliers, points = (torch.cat(each).repeat_interleave(twice, dim=1) for each in (scales, whole))
    return torch.cat(codes), multipliers, points


def _tile(kind: str, rows: Tensor, block_bytes: int) -> tuple[Tensor, Tensor, Tensor | None]:
    count = rows.shape[0]
    numbers, scales, taken = SPLIT[kind](rows.reshape(-1, block_bytes))
    numbers, scales = numbers.reshape(count, -1), scales.reshape(count, -1)
    first = 0 if kind in HALF_BYTE_KINDS else 128  # the zero point of numbers that are their own codes
    zeros = None
    if taken is not None:
        taken = taken.reshape(count, -1)
        # A multiplier of nothing: all numbers are what is taken away, which is then that of no code less one.
        flat = (scales == 0) & (taken != 0)
        scales = torch.where(flat, -taken, scales)
        zeros = first + torch.where(flat, -1.0, taken / torch.where(scales == 0, 1.0, scales))
        numbers = numbers.view(*scales.shape, -1).masked_fill(flat.unsqueeze(-1), 0).view(count, -1)
    if kind not in HALF_BYTE_KINDS:
        return numbers.to(torch.int8), scales, zeros
    halves = (numbers - _LOWEST.get(kind, 0)).to(torch.uint8).view(count, -1, 2, 16)
    return (halves[:, :, 0] | (halves[:, :, 1] << 4)).view(count, -1), scales, zeros
