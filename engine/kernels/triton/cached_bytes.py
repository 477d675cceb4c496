"""Numbers of a cache of one byte each, as kernels read and write them: codes, and a multiplier a head of a token.

What lies where is said in engine.kernels.scaled_cache. Codes become exact float16 numbers by moving bits; of E4M3 the
difference of the exponents' biases is left to the multiplier.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.kernels.triton.quantise_rows import e4m3_codes

PLAIN, E4M3, WHOLE = 0, 1, 2
CODES = {torch.uint8: E4M3, torch.int8: WHOLE}


def code_of(view: torch.Tensor) -> int:
    """PLAIN for a cache of floats."""
    return CODES.get(view.dtype, PLAIN)


@triton.jit
def _limit(CODE: tl.constexpr):
    """The largest code's size."""
    value: tl.constexpr = 448.0 if CODE == 1 else 127.0
    return value


@triton.jit
def _bias(CODE: tl.constexpr, HARDWARE: tl.constexpr):
    """A number over what _halves and _numbers make of its code. HARDWARE: the device converts E4M3 itself"""
    value: tl.constexpr = 256.0 if CODE == 1 and not HARDWARE else 1.0
    return value


@triton.jit
def _in_range(weights):
    """Of float16, which they become; NaN stays."""
    return tl.minimum(weights, 65504.0, propagate_nan=tl.PropagateNan.ALL)


_E4M3_CONVERTED = tl.constexpr(
    "{ .reg .b32 t; .reg .b16 low, high; prmt.b32 t, $2, 0, 0x3120; mov.b32 {low, high}, t;"
    " cvt.rn.f16x2.e4m3x2 $0, low; cvt.rn.f16x2.e4m3x2 $1, high; }"
)
_E4M3_PAIR = tl.constexpr(
    "{ .reg .b32 t, u; shl.b32 t, $2, 7; and.b32 t, t, 0x3F803F80; shl.b32 u, $2, 8; and.b32 u, u, 0x80008000;"
    " or.b32 $0, t, u; shr.u32 t, $2, 1; and.b32 t, t, 0x3F803F80; and.b32 u, $2, 0x80008000; or.b32 $1, t, u; }"
)
# A byte below 0x64 is 1024 and more; 1152 less is the number again, after an offset of 128 for its sign.
_WHOLE_PAIR = tl.constexpr(
    "{ .reg .b32 t, u, m, c; xor.b32 t, $2, 0x80808080; mov.b32 m, 0x64646464; mov.b32 c, 0x64806480;"
    " prmt.b32 u, t, m, 0x4240; sub.f16x2 $0, u, c; prmt.b32 u, t, m, 0x4341; sub.f16x2 $1, u, c; }"
)


@triton.jit
def _halves(words, CODE: tl.constexpr, PTX: tl.constexpr, HARDWARE: tl.constexpr):
    """Two float16 numbers of each int16: of its low byte and of its high one."""
    if PTX:
        e4m3: tl.constexpr = _E4M3_CONVERTED if HARDWARE else _E4M3_PAIR
        asm: tl.constexpr = e4m3 if CODE == 1 else _WHOLE_PAIR
        low, high = tl.inline_asm_elementwise(
            asm, "=r,=r,r", [words], dtype=(tl.float16, tl.float16), is_pure=True, pack=2
        )
    elif CODE == 1:
        wide = words.to(tl.int32)
        low_bits = ((wide & 0x7F) << 7) | ((wide & 0x80) << 8)
        high_bits = ((wide >> 1) & 0x3F80) | (wide & 0x8000)
        low = low_bits.to(tl.int16).to(tl.float16, bitcast=True)
        high = high_bits.to(tl.int16).to(tl.float16, bitcast=True)
    else:
        low = ((words << 8) >> 8).to(tl.float16)
        high = (words >> 8).to(tl.float16)
    return low, high


@triton.jit
def _numbers(codes, CODE: tl.constexpr, HARDWARE: tl.constexpr):
    """A float16 number of each byte."""
    if CODE == 2:
        value = codes.to(tl.float16)
    elif HARDWARE:
        value = codes.to(tl.float8e4nv, bitcast=True).to(tl.float16)
    else:
        wide = codes.to(tl.int16)
        value = (((wide & 0x7F) << 7) | ((wide & 0x80) << 8)).to(tl.float16, bitcast=True)
    return value


@triton.jit
def _scales_at(heads, tokens, PAGE: tl.constexpr, DIM: tl.constexpr):
    """Addresses of tokens' multipliers. heads: where each token's page has the head's bytes"""
    return (heads + PAGE * DIM).to(tl.pointer_type(tl.float32)) + tokens


@triton.jit
def _own_scales(largest, CODE: tl.constexpr):
    """Multipliers of heads by their largest numbers."""
    LIMIT: tl.constexpr = 448.0 if CODE == 1 else 127.0
    return tl.div_rn(tl.maximum(largest, 1e-20), LIMIT)


@triton.jit
def _where_finite(scales, largest):
    """Multipliers, but NaN for a head with a number that is not finite."""
    return tl.where(largest < float("inf"), scales, float("nan"))


@triton.jit
def _coded(values, scales, CODE: tl.constexpr, HARDWARE: tl.constexpr):
    """Codes of heads; numbers beyond the largest code become it, and none becomes NaN.

    Shapes: values [H, D] float32; scales [H] -> [H, D]
    """
    LIMIT: tl.constexpr = 448.0 if CODE == 1 else 127.0
    quotient = tl.div_rn(values, tl.broadcast_to(scales[:, None], values.shape))
    quotient = tl.minimum(tl.maximum(quotient, -LIMIT), LIMIT)
    if CODE == 2:
        # Adding and taking away three halves of 2 ** 23 rounds to the nearest even whole number.
        codes = ((quotient + 12582912.0) - 12582912.0).to(tl.int8)
    elif HARDWARE:
        codes = quotient.to(tl.float8e4nv).to(tl.uint8, bitcast=True)
    else:
        codes = e4m3_codes(quotient).to(tl.uint8)
    return codes
