"""Half bytes of a tile as numbers of 16 bits, by moving and setting bits: what tile_rows.py multiplies.

Source: PTX ISA, prmt; OCP Microscaling Formats 1.0
"""

# mypy: disable-error-code="assignment"

from __future__ import annotations

import triton
import triton.language as tl

SMALL_FP4 = tl.constexpr(2.0**126)
LIFT_BITS = tl.constexpr(126)
LIFT_E4M3, MORE_E4M3 = tl.constexpr(2.0**127), tl.constexpr(2.0**111)  # together 2^(118 + 120)
# By how scales are stored: what they are multiplied by to give bfloat16 numbers, and what is left of 2^126.
LIFTS = {"e4m3": (2.0**118, 2.0**8), "e8m0": (2.0**126, 1.0)}


def _ptx(byte: str, shift: str) -> str:
    """Four bytes' halves, each below a byte of 128's or 1024's bits, as two words of two numbers."""
    words = "prmt.b32 $0, t, m, 0x4140; prmt.b32 $1, t, m, 0x4342;"
    return f"{{ .reg .b32 t, m; mov.b32 m, {byte}; {shift} and.b32 t, t, 0x0F0F0F0F; {words} }}"


_LOW, _HIGH = "mov.b32 t, $2;", "shr.u32 t, $2, 4;"
LOW_BF16, HIGH_BF16 = tl.constexpr(_ptx("0x43434343", _LOW)), tl.constexpr(_ptx("0x43434343", _HIGH))
LOW_FP16, HIGH_FP16 = tl.constexpr(_ptx("0x64646464", _LOW)), tl.constexpr(_ptx("0x64646464", _HIGH))


@triton.jit
def _above(stored, TYPE: tl.constexpr, MAGIC: tl.constexpr, HALF: tl.constexpr, PTX: tl.constexpr, MOVES: tl.constexpr):
    """128 or 1024, whose last bits are free, plus the code in a half of each byte, by setting bits."""
    if PTX:
        if MAGIC == 0x4300:
            asm: tl.constexpr = LOW_BF16 if HALF == 0 else HIGH_BF16
            value = tl.inline_asm_elementwise(asm, "=r,=r,r", [stored], dtype=tl.bfloat16, is_pure=MOVES, pack=4)
        else:
            other: tl.constexpr = LOW_FP16 if HALF == 0 else HIGH_FP16
            value = tl.inline_asm_elementwise(other, "=r,=r,r", [stored], dtype=tl.float16, is_pure=MOVES, pack=4)
    else:
        nibble = (stored & 0xF) if HALF == 0 else (stored >> 4)
        value = (nibble.to(tl.int16) | MAGIC).to(TYPE, bitcast=True)
    return value


def _moved(sign: str, exponent: str, rest: str) -> str:
    """Four bytes' halves of E2M1 as two words of two bfloat16: the same bits in their places, which is 2^-126 of it."""
    high = f"{exponent} and.b32 e, e, 0x01010101; {sign} and.b32 s, s, 0x80808080; or.b32 e, e, s; "
    low = f"{rest} and.b32 s, s, 0xC0C0C0C0; prmt.b32 $0, s, e, 0x5140; prmt.b32 $1, s, e, 0x7362; "
    return "{ .reg .b32 e, s; " + high + low + "}"


_LOW_FP4 = tl.constexpr(_moved("shl.b32 s, $2, 4;", "shr.u32 e, $2, 2;", "shl.b32 s, $2, 6;"))
_HIGH_FP4 = tl.constexpr(_moved("mov.b32 s, $2;", "shr.u32 e, $2, 6;", "shl.b32 s, $2, 2;"))


@triton.jit
def _small_fp4(stored, HALF: tl.constexpr, MOVES: tl.constexpr):
    """2^-126 of the numbers in a half of each byte: exact, of which a half is no normal number."""
    asm: tl.constexpr = _LOW_FP4 if HALF == 0 else _HIGH_FP4
    return tl.inline_asm_elementwise(asm, "=r,=r,r", [stored], dtype=tl.bfloat16, is_pure=MOVES, pack=4)


@triton.jit
def _of_words(words, SCALE: tl.constexpr, LIFT: tl.constexpr, RUNS: tl.constexpr):
    """Multipliers times LIFT as bfloat16, from words of RUNS bytes. Shapes: words [N, 1] -> [N, RUNS]"""
    stored = (words >> (8 * tl.arange(0, RUNS))[None, :]).to(tl.int32) & 0xFF
    if SCALE == 1:
        # Moved like this, their bits are 2^-120 of them, the small ones' too.
        bits = ((stored & 0x7F) << 4) | ((stored & 0x80) << 8)
        value = bits.to(tl.int16).to(tl.bfloat16, bitcast=True)
        value = (value * tl.full(value.shape, LIFT_E4M3, tl.bfloat16)) * tl.full(value.shape, MORE_E4M3, tl.bfloat16)
    elif LIFT > 0:
        value = ((stored + LIFT_BITS) << 7).to(tl.int16).to(tl.bfloat16, bitcast=True)
    else:
        value = tl.maximum(stored << 7, 0x0040).to(tl.int16).to(tl.bfloat16, bitcast=True)
    return value
