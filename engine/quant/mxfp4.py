"""MXFP4: 32 numbers of four bits and one exponent, as GGUF stores them, and from the way safetensors files do.

Source: OCP Microscaling Formats 1.0 (E2M1 elements, E8M0 scale)
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.quant.quant_tensor import QuantTensor


def from_adjacent_nibbles(blocks: Tensor, scales: Tensor) -> QuantTensor:
    """Blocks whose bytes hold neighbours, made blocks whose bytes hold elements i and i + 16. Copies; exact.

    Shapes: blocks [N * K/32, 16] uint8; scales [N, K/32] uint8 -> (N, K)
    """
    rows, per_row = scales.shape
    pairs = blocks.view(rows, per_row, 16)
    nibbles = torch.stack((pairs & 15, pairs >> 4), dim=-1).view(rows, per_row, 2, 16)
    packed = torch.cat((scales.unsqueeze(-1), nibbles[:, :, 0] | (nibbles[:, :, 1] << 4)), dim=-1)
    return QuantTensor("MXFP4", packed.view(rows, per_row * 17), (rows, per_row * 32))
