"""A cache of one byte a number: E4M3 or whole numbers, with a multiplier for each head of each token.

A page's part of one head is page tokens * (D + 4) bytes: first all tokens' codes, D bytes each, then all their
multipliers, float32. So the view that a layer has is [pages, 2, G, page tokens, D + 4] and only this module and the
kernels know what lies where in the last two dimensions. uint8 is E4M3, int8 are whole numbers.
A multiplier is of the largest number of its head, taken when it is written, or a constant of the layer that was learnt
before: whichever, what one token is written as never depends on another. A constant is stored beside the codes all the
same, so that one kernel reads both.
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


def rounded(numbers: Tensor, dtype: torch.dtype, scales: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Codes and multipliers: those given, beyond whose largest code numbers saturate, or each head's own.

    A head with a number that is not finite has NaN for its multiplier; no code is ever NaN.
    Shapes: numbers [..., G, D]; scales [G] float32 -> codes [..., G, D] of dtype, multipliers [..., G] float32
    """
    wide = numbers.to(torch.float32)
    largest = LARGEST[dtype]
    sizes = wide.abs().amax(dim=-1)
    if scales is None:
        # By a tensor: what is divided by a plain number on a device is multiplied with its inverse, which rounds twice.
        made = sizes.clamp_min(SMALLEST) / torch.full_like(sizes, largest)
    else:
        made = scales.expand_as(sizes)
    made = torch.where(sizes.isfinite(), made, torch.nan)
    scaled = (wide / made.unsqueeze(-1)).clamp(-largest, largest).nan_to_num(0.0)
    if dtype is torch.int8:
        return scaled.round().to(torch.int8), made
    return scaled.to(torch.float8_e4m3fn).view(torch.uint8), made


def numbers_of(codes: Tensor, scales: Tensor) -> Tensor:
    """Shapes: codes [..., D], multipliers [...] -> [..., D] float32"""
    read = codes if codes.dtype is torch.int8 else codes.contiguous().view(torch.float8_e4m3fn)
    return read.to(torch.float32) * scales.unsqueeze(-1)
