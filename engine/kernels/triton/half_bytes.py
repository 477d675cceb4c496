"""Half-byte codes of 64-bit words as bytes: what half_dots.py multiplies. Source: PTX ISA, prmt"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _table(word: tl.constexpr, nothing, PTX: tl.constexpr):
    """Four bytes of a table in a register of each thread. nothing: 0, which the compiler does not know.

    A number it knows is made anew before every look-up.
    """
    if PTX:
        word = tl.inline_asm_elementwise(
            "{ .reg .b32 t; mov.u32 t, %tid.x; and.b32 t, t, $1; xor.b32 $0, t, $2; }",
            "=r,r,r", [nothing, word], dtype=tl.int32, is_pure=True, pack=1,
        )  # fmt: skip
    return word


@triton.jit
def _looked_up(codes, low_table, high_table, APART: tl.constexpr):
    """E2M1 codes of a word as bytes of 12 plus twice each, two words of eight. Source: PTX ISA, prmt

    A look-up's selector with its top bit set gives the sign of a table's byte, which is 0: so one table answers for
    the codes that are not negative, and the other one, asked with those bits turned, for the others.
    APART: the low halves' bytes and the high halves'; else in the order of the halves, those of the first bytes first.
    """
    first, second = tl.inline_asm_elementwise(
        """{ .reg .b32 a, b, t, u, v, w;
        mov.b64 {a, b}, $2;
        xor.b32 t, a, 0x88888888;
        prmt.b32 u, $3, 0x18141210, a;
        prmt.b32 v, $4, 0x00040608, t;
        add.u32 u, u, v;
        shr.u32 a, a, 16;
        shr.u32 t, t, 16;
        prmt.b32 w, $3, 0x18141210, a;
        prmt.b32 v, $4, 0x00040608, t;
        add.u32 w, w, v;
        mov.b64 $0, {u, w};
        xor.b32 t, b, 0x88888888;
        prmt.b32 u, $3, 0x18141210, b;
        prmt.b32 v, $4, 0x00040608, t;
        add.u32 u, u, v;
        shr.u32 b, b, 16;
        shr.u32 t, t, 16;
        prmt.b32 w, $3, 0x18141210, b;
        prmt.b32 v, $4, 0x00040608, t;
        add.u32 w, w, v;
        mov.b64 $1, {u, w}; }""",
        "=l,=l,l,r,r", [codes, low_table, high_table], dtype=(tl.int64, tl.int64), is_pure=True, pack=1,
    )  # fmt: skip
    if APART:
        first, second = tl.inline_asm_elementwise(
            """{ .reg .b32 a, b, u, w, x, y;
            mov.b64 {u, w}, $2;
            mov.b64 {x, y}, $3;
            prmt.b32 a, u, w, 0x6420;
            prmt.b32 b, x, y, 0x6420;
            prmt.b32 u, u, w, 0x7531;
            prmt.b32 x, x, y, 0x7531;
            mov.b64 $0, {a, b};
            mov.b64 $1, {u, x}; }""",
            "=l,=l,l,l", [first, second], dtype=(tl.int64, tl.int64), is_pure=True, pack=1,
        )  # fmt: skip
    return first, second


@triton.jit
def _halves(codes):
    """Codes of a word as bytes: the low halves' and the high ones'."""
    return tl.inline_asm_elementwise(
        """{ .reg .b32 a, b, t, u;
        mov.b64 {a, b}, $2;
        and.b32 t, a, 0x0f0f0f0f;
        and.b32 u, b, 0x0f0f0f0f;
        mov.b64 $0, {t, u};
        shr.u32 t, a, 4;
        shr.u32 u, b, 4;
        and.b32 t, t, 0x0f0f0f0f;
        and.b32 u, u, 0x0f0f0f0f;
        mov.b64 $1, {t, u}; }""",
        "=l,=l,l", [codes], dtype=(tl.int64, tl.int64), is_pure=True, pack=1,
    )  # fmt: skip


@triton.jit
def _plain_halves(codes, FP4: tl.constexpr, APART: tl.constexpr):
    """What _looked_up and _halves give, by arithmetic."""
    first = tl.zeros_like(codes)
    second = tl.zeros_like(codes)
    for place in tl.static_range(16):
        value = (codes >> (4 * place)) & 15
        if FP4:
            exponent = (value >> 1) & 3
            fraction = value & 1
            twice = tl.where(exponent == 0, fraction, (2 + fraction) << tl.maximum(exponent - 1, 0))
            value = tl.where(value >= 8, 12 - twice, 12 + twice)
        if APART:
            if place % 2 == 0:
                first |= value << (4 * place)
            else:
                second |= value << (4 * (place - 1))
        elif place < 8:
            first |= value << (8 * place)
        else:
            second |= value << (8 * (place - 8))
    return first, second
