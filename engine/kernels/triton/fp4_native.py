"""Four-bit floats on eight-bit matrix units: E2M1 times its block's power of two becomes E4M3 in registers.

For devices that multiply E4M3 and no E2M1. A row of the weight gets one multiplier, so that the library's product of
rows takes it; nothing is lost but what lies under 2 ** -17 of a row's largest. Multipliers that are E4M3 themselves
would make numbers of more digits than E4M3 has, and a weight that many rows see rounded and few do not: those weights
keep their kernels for any number of rows. Source: OCP Microscaling Formats 1.0
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.kernels.triton.coded import BLOCK, CodedWeight
from engine.kernels.triton.device import converts_fp8
from engine.kernels.triton.quantise_rows import e4m3_codes

SIZES = tl.constexpr((0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0))  # of E2M1's numbers, by their codes
NATIVE_ROWS = 128  # from here on a product in E4M3 saves more than the weight's conversion takes


@triton.jit
def _e4m3(numbers, HARDWARE: tl.constexpr):
    """The codes of float16 numbers that are not negative, as int32."""
    if HARDWARE:
        codes = numbers.to(tl.float8e4nv).to(tl.uint8, bitcast=True).to(tl.int32)
    else:
        codes = e4m3_codes(numbers.to(tl.float32))
    return codes


@triton.jit
def _to_e4m3_kernel(
    codes, scales, out, out_scales, blocks, HARDWARE: tl.constexpr, BLOCKS: tl.constexpr, PAD: tl.constexpr
):
    """One row of the weight: its largest multiplier first, then its numbers, BLOCKS blocks of 32 at once.

    All of it is exact in float16 until it is rounded.
    """
    n = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, PAD)
    top = tl.max(tl.load(scales + n * blocks + lanes, mask=lanes < blocks, other=0).to(tl.int32), axis=0)
    # 2 ** (top - 127 - 6), in two steps: the first exponents there are would be no float's.
    tl.store(out_scales + n, tl.exp2((top - 127).to(tl.float32)) * 0.015625)
    places = tl.arange(0, 16)
    for start in range(0, blocks, BLOCKS):
        block = start + tl.arange(0, BLOCKS)
        inside = block < blocks
        mask = inside[:, None] & (places >= 0)[None, :]
        at = block[:, None] * 16 + places[None, :]
        pair = tl.load(codes + n * blocks * 16 + at, mask=mask, other=0).to(tl.int32)
        byte = tl.load(scales + n * blocks + block, mask=inside, other=0).to(tl.int32)
        # Below 2 ** -20 of the largest nothing is left in E4M3; in float16 2 ** -14 is still whole.
        factor = ((tl.maximum(byte - top, -20) + 133) << 23).to(tl.float32, bitcast=True).to(tl.float16)
        # What a block's eight sizes become, a byte each.
        table = tl.zeros([BLOCKS], tl.int64)
        for size in tl.static_range(1, 8):
            table |= _e4m3((factor * SIZES[size]).to(tl.float16), HARDWARE).to(tl.int64) << (8 * size)
        for half in tl.static_range(2):
            nibble = (pair >> (4 * half)) & 0xF
            code = (table[:, None] >> ((nibble & 7) * 8).to(tl.int64)).to(tl.int32) & 0xFF | ((nibble & 8) << 4)
            to = out + n * blocks * 32 + block[:, None] * 32 + half * 16 + places[None, :]
            tl.store(to, code.to(tl.uint8), mask=mask)


def takes(weight: CodedWeight) -> bool:
    return weight.code == "fp4" and weight.scale_code == "e8m0"


def to_e4m3(weight: CodedWeight) -> tuple[torch.Tensor, torch.Tensor]:
    """E4M3 [N, K] and a multiplier a row [N, 1] of a weight that takes() takes."""
    assert takes(weight), (weight.code, weight.scale_code)
    (rows, depth), device = weight.shape, weight.codes.device
    out = torch.empty(rows, depth, dtype=torch.uint8, device=device)
    out_scales = torch.empty(rows, 1, dtype=torch.float32, device=device)
    blocks = depth // BLOCK
    _to_e4m3_kernel[(rows,)](
        weight.codes, weight.scales, out, out_scales, blocks, converts_fp8(device),
        min(128, triton.next_power_of_2(blocks)), max(16, triton.next_power_of_2(blocks)), num_warps=4,
    )  # fmt: skip
    return out.view(torch.float8_e4m3fn), out_scales
