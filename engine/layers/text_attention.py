"""Attention within whole texts, both ways, without pages: texts of like lengths are padded to one block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor

PADDING = 1.125  # a block may have so many times the tokens of its texts


@dataclass(frozen=True, slots=True)
class TextBlock:
    """Some texts that lie one after another in a batch, seen as rows of one length."""

    start: int  # first row in the batch
    lengths: tuple[int, ...]
    is_real: Tensor | None  # [S, L] bool, False where a row is padding; None: all have the same length

    @property
    def end(self) -> int:
        return self.start + sum(self.lengths)

    @property
    def width(self) -> int:
        return max(self.lengths)


def blocks_of(lengths: Sequence[int], device: torch.device) -> list[TextBlock]:
    """Blocks of neighbouring texts; few if the texts come by length."""
    blocks: list[TextBlock] = []
    starts = [0, *accumulate(lengths)]
    first = 0
    for end in range(1, len(lengths) + 1):
        if end < len(lengths):
            longest, real = max(lengths[first : end + 1]), starts[end + 1] - starts[first]
            if longest * (end + 1 - first) <= PADDING * real:
                continue
        found = tuple(lengths[first:end])
        is_real = None
        if len(set(found)) > 1:
            places = torch.arange(max(found), device=device)
            is_real = places[None, :] < torch.tensor(found, device=device)[:, None]
        blocks.append(TextBlock(starts[first], found, is_real))
        first = end
    return blocks


def attend(qkv: Tensor, blocks: Sequence[TextBlock], num_heads: int, scale: float) -> Tensor:
    """Shapes: qkv [T, 3 * hidden], q's heads, then k's, then v's -> [T, hidden]"""
    mixed = [_attend(qkv[block.start : block.end], block, num_heads, scale) for block in blocks]
    return mixed[0] if len(mixed) == 1 else torch.cat(mixed)


def _attend(qkv: Tensor, block: TextBlock, num_heads: int, scale: float) -> Tensor:
    shape = (len(block.lengths), block.width, qkv.shape[1])
    padded, mask = qkv, None
    if block.is_real is not None:
        padded = qkv.new_zeros(shape)
        padded[block.is_real] = qkv
        mask = block.is_real[:, None, None, :]
    heads = padded.view(*shape[:2], 3, num_heads, -1).permute(2, 0, 3, 1, 4)
    out = F.scaled_dot_product_attention(heads[0], heads[1], heads[2], attn_mask=mask, scale=scale)
    rows = out.transpose(1, 2).reshape(*shape[:2], -1)
    return rows.flatten(0, 1) if block.is_real is None else rows[block.is_real]
