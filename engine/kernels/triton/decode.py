"""Codes to floats by moving bits, 32 of them at a time: what kernels for a few rows share."""

# ruff: noqa: RUF005 - the kernel compiler knows no star in a tuple
# mypy: disable-error-code="assignment, var-annotated"

from __future__ import annotations

import torch
import triton
import triton.language as tl

BF16, FP16, FP32 = 0, 1, 2
INPUTS = {torch.bfloat16: BF16, torch.float16: FP16, torch.float32: FP32}
CODE_NUMBERS = {"fp8": 0, "int8": 1, "int4": 2, "fp4": 3}
SCALE_NUMBERS = {"float": 0, "e4m3": 1, "e8m0": 2}
# What the bit tricks leave out: E4M3 and E2M1 as float16 lack the difference of the exponents' biases, whole numbers
# are the fraction of a float between 1 and 2.
ONE_BITS = 0x3F800000  # of the float 1.0
CORRECTIONS = (256.0, 256.0, 16.0, 16384.0)


def input_words(x: torch.Tensor) -> torch.Tensor:
    """Activations as _inputs reads them: float32, or int64 words of four. Shapes: x [M, K], K a multiple of 4"""
    x = x.contiguous()
    if x.dtype == torch.float32:
        return x
    # A row cut out of a wider one may begin within a word.
    return (x.clone() if x.storage_offset() % 4 else x).view(torch.int64)


@triton.jit
def _low_half(pair):
    """The float16 in the low half of a word, as float32."""
    return pair.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _high_half(pair, PTX: tl.constexpr):
    """That in the high half. In PTX, since the compiler else gathers two words' halves in a third one before."""
    if PTX:
        value = tl.inline_asm_elementwise(
            "{ .reg .b16 low, high; mov.b32 {low, high}, $1; cvt.f32.f16 $0, high; }",
            "=f,r", [pair], dtype=tl.float32, is_pure=True, pack=1,
        )  # fmt: skip
    else:
        value = (pair >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    return value


@triton.jit
def _inputs(x, quads, mask, EVEN: tl.constexpr, INPUT: tl.constexpr, PTX: tl.constexpr):
    """Four neighbouring inputs of each quad of them, as float32. x: int64 words of four, or float32."""
    if INPUT == 2:
        first = tl.load(x + quads * 4, mask=mask, other=0.0)
        second = tl.load(x + quads * 4 + 1, mask=mask, other=0.0)
        third = tl.load(x + quads * 4 + 2, mask=mask, other=0.0)
        fourth = tl.load(x + quads * 4 + 3, mask=mask, other=0.0)
    else:
        if EVEN:
            four = tl.load(x + quads)
        else:
            four = tl.load(x + quads, mask=mask, other=0)
        low = four.to(tl.int32)
        high = (four >> 32).to(tl.int32)
        if INPUT == 0:
            first = (low << 16).to(tl.float32, bitcast=True)
            second = (low & -65536).to(tl.float32, bitcast=True)
            third = (high << 16).to(tl.float32, bitcast=True)
            fourth = (high & -65536).to(tl.float32, bitcast=True)
        else:
            first, second = _low_half(low), _high_half(low, PTX)
            third, fourth = _low_half(high), _high_half(high, PTX)
    return first, second, third, fourth


@triton.jit
def _fraction(words, shift: tl.constexpr, mask: tl.constexpr, one):
    """1 plus the bits of a mask as a fraction. one: the bits of 1.0, no constant, so that and-or is one operation."""
    if shift >= 0:
        moved = words << shift
    else:
        moved = words >> -shift
    return ((moved & mask) | one).to(tl.float32, bitcast=True)


@triton.jit
def _decoded(words, one, CODE: tl.constexpr, HALF: tl.constexpr, PTX: tl.constexpr):
    """Four numbers of each word: of its bytes, or of the low or high halves of them. See CORRECTIONS."""
    if CODE == 0:
        odd = ((words & 0x7F007F00) >> 1) | (words & -2147450880)  # 0x80008000
        shifted = words << 8
        even = ((shifted & 0x7F007F00) >> 1) | (shifted & -2147450880)
        first, second = _low_half(even), _low_half(odd)
        third, fourth = _high_half(even, PTX), _high_half(odd, PTX)
    elif CODE == 1:
        words = words ^ -2139062144  # 0x80808080: from two's complement to an offset of 128
        first, second = _fraction(words, 15, 0x007F8000, one), _fraction(words, 7, 0x007F8000, one)
        third, fourth = _fraction(words, -1, 0x007F8000, one), _fraction(words, -9, 0x007F8000, one)
    elif CODE == 2:
        # One shift serves both halves of a byte; the low one's fraction is a sixteenth of the high one's.
        first, second = (
            _fraction(words, 15, 0x78000 << (4 * HALF), one),
            _fraction(words, 7, 0x78000 << (4 * HALF), one),
        )
        third, fourth = (
            _fraction(words, -1, 0x78000 << (4 * HALF), one),
            _fraction(words, -9, 0x78000 << (4 * HALF), one),
        )
    else:
        top = words
        if HALF == 0:
            top = words << 4
        odd = ((top & 0x70007000) >> 3) | (top & -2147450880)
        top = top << 8
        even = ((top & 0x70007000) >> 3) | (top & -2147450880)
        first, second = _low_half(even), _low_half(odd)
        third, fourth = _high_half(even, PTX), _high_half(odd, PTX)
    return first, second, third, fourth


@triton.jit
def _with(values, place: tl.constexpr, value):
    """The same tuple but for one member."""
    changed = ()
    for i in tl.static_range(len(values)):
        if i == place:
            changed = changed + (value,)
        else:
            changed = changed + (values[i],)
    return changed


@triton.jit
def _of_e4m3(byte):
    """The number of the lowest byte."""
    return _low_half(((byte & 0x7F) << 7) | ((byte & 0x80) << 8)) * 256.0


@triton.jit
def _scale(scales, at, mask, EVEN: tl.constexpr, SCALE: tl.constexpr):
    """Multipliers as float32, whatever they are stored as."""
    if EVEN:
        stored = tl.load(scales + at)
    else:
        stored = tl.load(scales + at, mask=mask, other=0)
    if SCALE == 0:
        value = stored.to(tl.float32)
    else:
        byte = stored.to(tl.int32)
        if SCALE == 1:
            value = _of_e4m3(byte)
        else:
            # Its bits, but of byte 0, whose power of two is no normal number.
            value = tl.maximum(byte << 23, 0x00400000).to(tl.float32, bitcast=True)
    return value


@triton.jit
def _products(value, numbers, inputs):
    """value plus the four products of each word. Shapes: all [G, W]; numbers and inputs four of them"""
    value += numbers[0] * inputs[0]
    value += numbers[1] * inputs[1]
    value += numbers[2] * inputs[2]
    value += numbers[3] * inputs[3]
    return value


@triton.jit
def _added(inputs):
    return (inputs[0] + inputs[1]) + (inputs[2] + inputs[3])
