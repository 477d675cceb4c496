"""A cache of one byte a number: E4M3 or whole numbers, with a multiplier for each head of each token.

A page's part of one head is page tokens * (D + 4) bytes: first all tokens' codes, D bytes each, then all their
multipliers, float32. So the view that a layer has is [pages, 2, G, page tokens, D + 4] and only this module and the
kernels know what lies where in the last two dimensions. uint8 is E4M3, int8 are whole numbers.
Multipliers are of the largest number of a head, taken when it is written: nothing is calibrated, and what one token
is written as never depends on another.
"""

from __future__ import annotations

import torch
from torch import Tensor

SCALE_BYTES = 4
LARGEST = {torch.uint8: 448.0, torch.int8: 127.0}
SMALLEST = 1e-20  # a head of zeros divides by something


def is_scaled(view: Tensor) -> bool:
    return view.dtype in LARGEST


def parts(view: Tensor) -> tuple[Tensor, Tensor]:
    """Codes [pages, 2, G, page tokens, D] and multipliers [pages, 2, G, page tokens] float32, views of the cache."""
    pages, planes, heads, tokens, width = view.shape
    dim = width - SCALE_BYTES
    codes = view.as_strided((pages, planes, heads, tokens, dim), (*view.stride()[:3], dim, 1))
    words = view.view(torch.float32)
    strides = words.stride()[:3]
    scales = words.as_strided((pages, planes, heads, tokens), (*strides, 1), words.storage_offset() + tokens * dim // 4)
    return codes, scales


def rounded(numbers: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Shapes: numbers [..., D] -> codes [..., D] of dtype, multipliers [...] float32"""
    wide = numbers.to(torch.float32)
    largest = LARGEST[dtype]
    scales = wide.abs().amax(dim=-1).clamp_min(SMALLEST) / largest
    scaled = (wide / scales.unsqueeze(-1)).clamp(-largest, largest)
    if dtype is torch.int8:
        return scaled.round().to(torch.int8), scales
    return scaled.to(torch.float8_e4m3fn).view(torch.uint8), scales


def numbers_of(codes: Tensor, scales: Tensor) -> Tensor:
    """Shapes: codes [..., D], multipliers [...] -> [..., D] float32"""
    read = codes if codes.dtype is torch.int8 else codes.contiguous().view(torch.float8_e4m3fn)
    return read.to(torch.float32) * scales.unsqueeze(-1)
