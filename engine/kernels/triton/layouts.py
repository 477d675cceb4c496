"""What keeps a kernel's tensors in one layout, so that threads exchange nothing.

The compiler chooses how each load is shared out among threads, and moves what was read to where it is used: through
shared memory, with a barrier. Loads whose neighbours it does not know of are shared out one by one, first index first.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _apart(index, PTX: tl.constexpr):
    """The same places, of which the compiler does not know that they are neighbours.

    It else has each thread read several multipliers at once, which are then those of other threads' blocks.
    """
    if PTX:
        index = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [index], dtype=tl.int32, is_pure=True, pack=1)
    return index


@triton.jit
def _within(index, end: tl.constexpr, WHOLE: tl.constexpr):
    """The mask of what is there. WHOLE: all is, which the compiler does not find out itself"""
    if WHOLE:
        mask = tl.full(index.shape, True, tl.int1)
    else:
        mask = index < end
    return mask
