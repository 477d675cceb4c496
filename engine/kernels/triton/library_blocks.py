"""E4M3 products with multipliers of square blocks by the matrix library, where it has them.

On an H200 it takes 60 to 65 % of bfloat16's time from 512 rows on, where our own kernel takes longer than bfloat16: to
the library a block of 128 x 128 has one multiplier, to ours each row of it has one.
"""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F

from engine.kernels.triton.coded import CodedWeight
from engine.kernels.triton.device import speaks_ptx
from engine.kernels.triton.quantise_rows import QuantRows

FROM_ROWS = 65  # ours is as fast below
DEPTH = 512  # K is a multiple of: the library reads the multipliers of four blocks at once


@functools.cache
def has_blocks(device: torch.device) -> bool:
    """Whether the device's library multiplies so: CUDA's, from 12.9 on, on compute capability 9.0."""
    if not speaks_ptx(device) or torch.cuda.get_device_capability(device) != (9, 0):
        return False
    version = tuple(int(part) for part in str(torch.version.cuda).split(".")[:2])
    return version >= (12, 9) and hasattr(F, "scaled_mm")


def fits(weight: CodedWeight) -> bool:
    """Whether the library takes this weight, whatever the number of rows."""
    return weight.block_scales is not None and weight.shape[1] % DEPTH == 0 and has_blocks(weight.codes.device)


def product(rows: QuantRows, weight: CodedWeight, dtype: torch.dtype, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Shapes: rows [M, K] in groups of 128; weight (N, K) that fits; bias [N] -> [M, N] of dtype"""
    assert rows.whole is not None
    assert weight.block_scales is not None
    codes, scales = rows.whole
    out: torch.Tensor = F.scaled_mm(
        codes, weight.codes.view(torch.float8_e4m3fn).T, scales, F.ScalingType.BlockWise1x128,
        weight.block_scales.T, F.ScalingType.BlockWise128x128, output_dtype=dtype,
    )  # fmt: skip
    out = out[: rows.codes.shape[0]]
    return out if bias is None else out.add_(bias)
