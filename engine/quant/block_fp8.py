"""Block-scaled FP8: E4M3 bytes with one float32 multiplier a block of 128 by 128, made rows of blocks of 128.

FP8_B128 is Bayard's own block: the multiplier in four bytes, then 128 E4M3 bytes. Each row carries its multipliers, so
that rows can be taken, put in order and stacked as of any other type; that costs 3 %.
Source: OFP8 rev 1.0; the block scales as DeepSeek V3 publishes them
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.errors import UnsupportedFormat
from engine.quant.quant_tensor import QuantTensor

BLOCK = 128
ROWS_AT_ONCE = 4096
NAN_BITS = 0x7F  # with either sign


def from_block_scales(numbers: Tensor, scales: Tensor, name: str) -> QuantTensor:
    """Copies; exact.

    Shapes: numbers [N, K] uint8, K a multiple of 128; scales [N / 128, K / 128] float32, rounded up -> (N, K)
    Raises: UnsupportedFormat when a number is not one
    """
    rows, columns = numbers.shape
    blocks = columns // BLOCK
    packed = torch.empty(rows, blocks, 4 + BLOCK, dtype=torch.uint8, device=numbers.device)
    for start in range(0, rows, ROWS_AT_ONCE):
        part = numbers[start : start + ROWS_AT_ONCE]
        if bool(((part & NAN_BITS) == NAN_BITS).any()):
            raise UnsupportedFormat(f"{name} holds FP8 values that are not numbers.", "Download the checkpoint again.")
        of_row = scales[torch.arange(start, start + part.shape[0], device=scales.device) // BLOCK]
        packed[start : start + ROWS_AT_ONCE, :, :4] = of_row.contiguous().view(torch.uint8).view(-1, blocks, 4)
        packed[start : start + ROWS_AT_ONCE, :, 4:] = part.view(-1, blocks, BLOCK)
    return QuantTensor("FP8_B128", packed.view(rows, -1), (rows, columns))
