"""Heads of a projection, normed where a model does that, and rotated in place: what writing a cache begins with."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _turned(heads_at, mask, lanes, beyond, beyond_lanes, cos, sin, norm, eps, TYPE: tl.constexpr,
            DIM: tl.constexpr, HALF: tl.constexpr, NORMED: tl.constexpr):  # fmt: skip
    """Heads over their root mean square if they are normed, then rotated: both halves, and what lies beyond them.

    Shapes: heads_at [H, 1]; mask [H, half]; beyond [H, DIM] of what is not rotated; norm [DIM]
    """
    first = tl.load(heads_at + lanes[None, :], mask=mask, other=0.0).to(tl.float32)
    second = tl.load(heads_at + HALF + lanes[None, :], mask=mask, other=0.0).to(tl.float32)
    rest = tl.zeros_like(first)
    if 2 * HALF < DIM:
        rest = tl.load(heads_at + beyond_lanes[None, :], mask=beyond, other=0.0).to(tl.float32)
    if NORMED:
        squares = tl.sum(first * first, axis=1) + tl.sum(second * second, axis=1)
        if 2 * HALF < DIM:
            squares += tl.sum(rest * rest, axis=1)
        factor = tl.rsqrt(squares / DIM + eps)[:, None]
        in_half = lanes < HALF
        first_norm = tl.load(norm + lanes, mask=in_half, other=0.0).to(tl.float32)
        second_norm = tl.load(norm + HALF + lanes, mask=in_half, other=0.0).to(tl.float32)
        first = (first * factor * first_norm[None, :]).to(TYPE).to(tl.float32)
        second = (second * factor * second_norm[None, :]).to(TYPE).to(tl.float32)
        if 2 * HALF < DIM:
            rest_norm = tl.load(norm + beyond_lanes, mask=beyond_lanes < DIM, other=0.0).to(tl.float32)
            rest = rest * factor * rest_norm[None, :]
    turned_first = (first * cos - second * sin).to(TYPE)
    turned_second = (second * cos + first * sin).to(TYPE)
    rest = rest.to(TYPE)
    tl.store(heads_at + lanes[None, :], turned_first, mask=mask)
    tl.store(heads_at + HALF + lanes[None, :], turned_second, mask=mask)
    if NORMED and 2 * HALF < DIM:
        tl.store(heads_at + beyond_lanes[None, :], rest, mask=beyond)
    return turned_first, turned_second, rest
