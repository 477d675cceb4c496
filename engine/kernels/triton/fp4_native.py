"""Four-bit floats on eight-bit matrix units: E2M1 times its block's multiplier becomes E4M3 in registers.

For devices that multiply E4M3 and no E2M1. A row of the weight gets one multiplier, so that the library's product of
rows takes it. With multipliers that are powers of two (E8M0) nothing is lost but what lies under 2 ** -17 of a row's
largest; with E4M3 ones the product of both fractions is rounded to the nearest, as the activations are.
Source: OCP Microscaling Formats 1.0
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.kernels.triton import quant_linear
from engine.kernels.triton.coded import BLOCK, CodedWeight
from engine.kernels.triton.decode import SCALE_NUMBERS
from engine.kernels.triton.device import converts_fp8
from engine.kernels.triton.quant_linear import PackedLinear
from engine.kernels.triton.quantise_rows import e4m3_codes, quantise_rows

NATIVE_ROWS = 128  # from here on a product in E4M3 saves more than the weight's conversion takes


@triton.jit
def _to_e4m3_kernel(
    codes, scales, row_scales, out, out_scales, blocks, groups,
    SCALE: tl.constexpr, HALVES: tl.constexpr, HAS_ROW_SCALES: tl.constexpr, HARDWARE: tl.constexpr,
    BLOCKS: tl.constexpr, PAD: tl.constexpr,
):  # fmt: skip
    """One row of the weight: its largest multiplier first, then its numbers, BLOCKS blocks of 32 at once.

    All of it is exact in float16 until it is rounded. HALVES: multipliers of a block, 1 or 2
    """
    n = tl.program_id(0).to(tl.int64)
    top = 0
    if SCALE == 2:
        lanes = tl.arange(0, PAD)
        stored = tl.load(scales + n * groups + lanes, mask=lanes < groups, other=0).to(tl.int32)
        top = tl.max(stored, axis=0)
        # 2 ** (top - 127 - 6), in two steps: the first exponents there are would be no float's.
        row = tl.exp2((top - 127).to(tl.float32)) * 0.015625
    else:
        row = 8.0
    if HAS_ROW_SCALES:
        row *= tl.load(row_scales + n)
    tl.store(out_scales + n, row)
    places = tl.arange(0, 16)
    for start in range(0, blocks, BLOCKS):
        block = start + tl.arange(0, BLOCKS)
        inside = block < blocks
        mask = inside[:, None] & (places >= 0)[None, :]
        at = block[:, None] * 16 + places[None, :]
        pair = tl.load(codes + n * blocks * 16 + at, mask=mask, other=0).to(tl.int16)
        for half in tl.static_range(2):
            byte = tl.load(scales + n * groups + block * HALVES + half * (HALVES - 1), mask=inside, other=0)
            byte = byte.to(tl.int32)
            if SCALE == 2:
                # Below 2 ** -20 of the largest nothing is left in E4M3; in float16 2 ** -14 is still whole.
                step = tl.maximum(byte - top, -20) + 133
                factor = (step << 23).to(tl.float32, bitcast=True).to(tl.float16)
            else:
                # 256 of the exponent's bias, an eighth for the range
                bits = (((byte & 0x7F) << 7) | ((byte & 0x80) << 8)).to(tl.int16)
                factor = bits.to(tl.float16, bitcast=True) * 32.0
            nibble = (pair >> (4 * half)) & 0xF
            # As float16 with the exponent's bias left out: 2 ** -14 of the number, exact for the smallest too.
            bits = ((nibble & 7) << 9) | ((nibble & 8) << 12)
            number = bits.to(tl.int16).to(tl.float16, bitcast=True) * 16384.0
            number = (number * factor.to(tl.float16)[:, None]).to(tl.float16)
            if HARDWARE:
                code = number.to(tl.float8e4nv).to(tl.uint8, bitcast=True)
            else:
                code = e4m3_codes(number.to(tl.float32)).to(tl.uint8)
            tl.store(out + n * blocks * 32 + block[:, None] * 32 + half * 16 + places[None, :], code, mask=mask)


def to_e4m3(weight: CodedWeight, rows: slice | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Some rows as E4M3 [n, K] and a multiplier a row [n, 1]."""
    assert weight.code == "fp4", weight.code
    first, end, _ = (rows or slice(None)).indices(weight.shape[0])
    depth, groups = weight.shape[1], weight.scales.shape[1]
    device = weight.codes.device
    out = torch.empty(end - first, depth, dtype=torch.uint8, device=device)
    out_scales = torch.empty(end - first, 1, dtype=torch.float32, device=device)
    blocks = depth // BLOCK
    _to_e4m3_kernel[(end - first,)](
        weight.codes[first:end], weight.scales[first:end],
        weight.codes if weight.row_scales is None else weight.row_scales[first:end], out, out_scales, blocks, groups,
        SCALE_NUMBERS[weight.scale_code], groups // blocks, weight.row_scales is not None, converts_fp8(device),
        min(128, triton.next_power_of_2(blocks)), max(16, triton.next_power_of_2(groups)), num_warps=4,
    )  # fmt: skip
    return out.view(torch.float8_e4m3fn), out_scales


def linear_fp4(x: torch.Tensor, packed: PackedLinear, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Activations of many rows become E4M3, a scale a row; of fewer they stay exact. Shapes: as quant_linear.linear."""
    if x.shape[0] < NATIVE_ROWS or packed.plain is not None:
        return quant_linear.linear(x, packed, bias)
    rows, _ = quantise_rows(x, "fp8")
    return quant_linear.product_fp8(rows, *to_e4m3(packed.weight), x.dtype, bias)
