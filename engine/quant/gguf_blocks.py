"""Plain torch dequantisers of the GGUF block types Bayard computes with, and the truth that kernels are tested against.

Each takes blocks [B, block_bytes] uint8 and gives [B, block_elements] float32, in the order of operations that makes
the result equal bit for bit to other readers of the format. Source: the ggml block layouts.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from engine.errors import UnsupportedFormat
from engine.ggml_types import I8_ROW, TYPE_BY_NAME
from engine.quant.low_bits import half, iq4_nl, iq4_xs, mxfp4, nibbles, q2_k, q3_k, shifted

Dequantiser = Callable[[Tensor], Tensor]


def fifth_bits(packed: Tensor) -> Tensor:
    """[B, 4] bytes, a little-endian word of 32 bits -> [B, 32] with 16 where the bit is set."""
    shifts = torch.arange(8, dtype=torch.uint8, device=packed.device)
    return ((packed.unsqueeze(-1) >> shifts) & 1).reshape(packed.shape[0], 32) << 4


def _f32(blocks: Tensor) -> Tensor:
    return blocks.contiguous().view(torch.float32)


def _f16(blocks: Tensor) -> Tensor:
    return blocks.contiguous().view(torch.float16).to(torch.float32)


def _bf16(blocks: Tensor) -> Tensor:
    return blocks.contiguous().view(torch.bfloat16).to(torch.float32)


def _q4_0(blocks: Tensor) -> Tensor:
    return half(blocks, 0) * (nibbles(blocks[:, 2:]).to(torch.float32) - 8.0)


def _q4_1(blocks: Tensor) -> Tensor:
    return half(blocks, 0) * nibbles(blocks[:, 4:]).to(torch.float32) + half(blocks, 2)


def _q5_0(blocks: Tensor) -> Tensor:
    quants = nibbles(blocks[:, 6:]) | fifth_bits(blocks[:, 2:6])
    return half(blocks, 0) * (quants.to(torch.float32) - 16.0)


def _q5_1(blocks: Tensor) -> Tensor:
    quants = nibbles(blocks[:, 8:]) | fifth_bits(blocks[:, 4:8])
    return half(blocks, 0) * quants.to(torch.float32) + half(blocks, 2)


def _q8_0(blocks: Tensor) -> Tensor:
    return half(blocks, 0) * blocks[:, 2:].contiguous().view(torch.int8).to(torch.float32)


def k_scales(packed: Tensor) -> tuple[Tensor, Tensor]:
    """The 12 bytes of eight 6-bit scales and eight 6-bit minima -> two [B, 8, 1] float32."""
    first, second, rest = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = torch.cat((first & 63, (rest & 15) | ((first >> 6) << 4)), dim=1)
    minima = torch.cat((second & 63, (rest >> 4) | ((second >> 6) << 4)), dim=1)
    return scales.to(torch.float32).unsqueeze(-1), minima.to(torch.float32).unsqueeze(-1)


def _k_affine(blocks: Tensor, quants: Tensor) -> Tensor:
    """Eight sub-blocks of 32: d * scale * q - dmin * minimum. quants [B, 8, 32]."""
    scales, minima = k_scales(blocks[:, 4:16])
    scale = half(blocks, 0).unsqueeze(-1) * scales
    offset = half(blocks, 2).unsqueeze(-1) * minima
    return (scale * quants.to(torch.float32) - offset).reshape(blocks.shape[0], 256)


def k_nibbles(packed: Tensor) -> Tensor:
    """[B, 128] bytes -> [B, 8, 32]: each run of 32 bytes holds two sub-blocks, low nibbles first."""
    runs = packed.reshape(-1, 4, 1, 32)
    return torch.cat((runs & 15, runs >> 4), dim=2).reshape(-1, 8, 32)


def _q4_k(blocks: Tensor) -> Tensor:
    return _k_affine(blocks, k_nibbles(blocks[:, 16:144]))


def _q5_k(blocks: Tensor) -> Tensor:
    shifts = torch.arange(8, dtype=torch.uint8, device=blocks.device).reshape(1, 8, 1)
    high = ((blocks[:, 16:48].unsqueeze(1) >> shifts) & 1) << 4
    return _k_affine(blocks, k_nibbles(blocks[:, 48:176]) | high)


def _q6_k(blocks: Tensor) -> Tensor:
    low = blocks[:, :128].reshape(-1, 2, 1, 64)
    low = torch.cat((low & 15, low >> 4), dim=2).reshape(-1, 2, 4, 32)  # quarter q of a half: 32 elements
    high = shifted(blocks[:, 128:192].reshape(-1, 2, 32), 2, 4) & 3
    quants = (low | (high << 4)).to(torch.float32).reshape(-1, 16, 16) - 32.0
    scales = blocks[:, 192:208].contiguous().view(torch.int8).to(torch.float32).unsqueeze(-1)
    return ((half(blocks, 208).unsqueeze(-1) * scales) * quants).reshape(blocks.shape[0], 256)


def _four_runs(packed: Tensor) -> Tensor:
    """[B, 64] bytes, four runs of 32 numbers each -> [B, 128] float32."""
    return nibbles(packed.reshape(-1, 16)).reshape(packed.shape[0], 128).to(torch.float32)


def _i4_g128(blocks: Tensor) -> Tensor:
    return _f32(blocks[:, :4]) * (_four_runs(blocks[:, 4:]) - 8.0)


def _i4z_g128(blocks: Tensor) -> Tensor:
    """Rounded once, as (q - zero) * scale is."""
    scale, offset = _f32(blocks[:, :4]).double(), _f32(blocks[:, 4:8]).double()
    return (scale * _four_runs(blocks[:, 8:]) + offset).to(torch.float32)


DEQUANTISERS: dict[str, Dequantiser] = {
    "F32": _f32,
    "F16": _f16,
    "BF16": _bf16,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "Q2_K": q2_k,
    "Q3_K": q3_k,
    "IQ4_NL": iq4_nl,
    "IQ4_XS": iq4_xs,
    "MXFP4": mxfp4,
}
OWN_DEQUANTISERS: dict[str, Dequantiser] = {"I4_G128": _i4_g128, "I4Z_G128": _i4z_g128}  # of kinds no file names


def dequantise_rows(kind: str, rows: Tensor) -> Tensor:
    """Stored rows to numbers.

    Shapes: rows [N, row_bytes] uint8 -> [N, K] float32
    Raises: UnsupportedFormat when there is no dequantiser for kind
    """
    if kind == I8_ROW.name:
        return rows[:, :4].contiguous().view(torch.float32) * rows[:, 4:].view(torch.int8).to(torch.float32)
    dequantiser = DEQUANTISERS.get(kind) or OWN_DEQUANTISERS.get(kind)
    if dequantiser is None:
        raise UnsupportedFormat(
            f"weights of type {kind} cannot be computed with; supported: {', '.join(DEQUANTISERS)}.",
            "Import a checkpoint of a supported type, for example Q4_K or Q8_0.",
        )
    stored = TYPE_BY_NAME[kind]
    count, blocks = rows.shape[0], rows.shape[1] // stored.block_bytes
    numbers = dequantiser(rows.reshape(count * blocks, stored.block_bytes))
    return numbers.reshape(count, blocks * stored.block_elements)
