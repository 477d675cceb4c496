"""Writing K and V to a cache of bytes: rounded with a multiplier a head, in the pass that rotates them."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.kernels.triton.cached_bytes import _coded, _scales_at, code_of
from engine.kernels.triton.device import converts_fp8

MANY_TOKENS = 64  # from here on a program takes several heads: fewer would leave it too little to do
HEADS_EACH = 8


@triton.jit
def _store_part(heads_at, offset, lanes, values, mask, largest, DIM: tl.constexpr, CODE: tl.constexpr,
                HARDWARE: tl.constexpr):  # fmt: skip
    """Codes of some of the heads' numbers; their multipliers."""
    codes, scales = _coded(values, largest, CODE, HARDWARE)
    tl.store(heads_at[:, None] + offset * DIM + lanes[None, :], codes, mask=mask)
    return scales


@triton.jit
def _write_bytes_kernel(
    q, k, v, positions, cos_sin, view, pages, offsets,
    q_token_stride, q_head_stride, k_token_stride, k_head_stride, v_token_stride, v_head_stride,
    page_stride, plane_stride, head_stride,
    NUM_Q: tl.constexpr, NUM_KV: tl.constexpr, DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    HALF: tl.constexpr, BLOCK_H: tl.constexpr, HEADS: tl.constexpr, PAGE: tl.constexpr,
    CODE: tl.constexpr, HARDWARE: tl.constexpr,
):  # fmt: skip
    """A program rotates HEADS heads in place, a key's into its page too, or copies heads there as they are.

    NUM_Q: 0 where nothing is rotated, and K is copied as V is
    """
    token = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    q_blocks: tl.constexpr = (NUM_Q + HEADS - 1) // HEADS
    kv_blocks: tl.constexpr = (NUM_KV + HEADS - 1) // HEADS
    page = tl.load(pages + token).to(tl.int64)
    offset = tl.load(offsets + token)
    target = view + page * page_stride
    if (NUM_Q > 0) & (block < q_blocks + kv_blocks):
        lanes = tl.arange(0, BLOCK_H)
        in_half = lanes < HALF
        position = tl.load(positions + token)
        cos = tl.load(cos_sin + position * 2 * HALF + lanes, mask=in_half, other=0.0).to(tl.float32)[None, :]
        sin = tl.load(cos_sin + position * 2 * HALF + HALF + lanes, mask=in_half, other=0.0).to(tl.float32)[None, :]
        if block < q_blocks:
            heads = block * HEADS + tl.arange(0, HEADS)
            base = q + token * q_token_stride + heads[:, None] * q_head_stride
            mask = (heads < NUM_Q)[:, None] & in_half[None, :]
        else:
            heads = (block - q_blocks) * HEADS + tl.arange(0, HEADS)
            base = k + token * k_token_stride + heads[:, None] * k_head_stride
            mask = (heads < NUM_KV)[:, None] & in_half[None, :]
        first = tl.load(base + lanes[None, :], mask=mask, other=0.0).to(tl.float32)
        second = tl.load(base + HALF + lanes[None, :], mask=mask, other=0.0).to(tl.float32)
        rotated_first = (first * cos - second * sin).to(q.dtype.element_ty)
        rotated_second = (second * cos + first * sin).to(q.dtype.element_ty)
        tl.store(base + lanes[None, :], rotated_first, mask=mask)
        tl.store(base + HALF + lanes[None, :], rotated_second, mask=mask)
        if block >= q_blocks:
            exists = heads < NUM_KV
            heads_at = target + heads * head_stride
            first = rotated_first.to(tl.float32)
            second = rotated_second.to(tl.float32)
            largest = tl.max(tl.maximum(tl.abs(first), tl.abs(second)), axis=1)
            rest_lanes = tl.arange(0, BLOCK_D)
            beyond = exists[:, None] & ((rest_lanes >= 2 * HALF) & (rest_lanes < DIM))[None, :]
            if 2 * HALF < DIM:
                kept = tl.load(base + rest_lanes[None, :], mask=beyond, other=0.0).to(tl.float32)
                largest = tl.maximum(largest, tl.max(tl.abs(kept), axis=1))
                _store_part(heads_at, offset, rest_lanes, kept, beyond, largest, DIM, CODE, HARDWARE)
            _store_part(heads_at, offset, lanes + HALF, second, mask, largest, DIM, CODE, HARDWARE)
            scales = _store_part(heads_at, offset, lanes, first, mask, largest, DIM, CODE, HARDWARE)
            tl.store(_scales_at(heads_at, offset, PAGE, DIM), scales, mask=exists)
    else:
        at = block
        if NUM_Q > 0:
            at = block - q_blocks
        plane = at // kv_blocks
        groups = (at % kv_blocks) * HEADS + tl.arange(0, HEADS)
        all_lanes = tl.arange(0, BLOCK_D)
        real = (groups < NUM_KV)[:, None] & (all_lanes < DIM)[None, :]
        if plane == 0:
            value_base = k + token * k_token_stride + groups[:, None] * k_head_stride
        else:
            value_base = v + token * v_token_stride + groups[:, None] * v_head_stride
        values = tl.load(value_base + all_lanes[None, :], mask=real, other=0.0).to(tl.float32)
        values_at = target + plane * plane_stride + groups * head_stride
        scales = _store_part(
            values_at, offset, all_lanes, values, real, tl.max(tl.abs(values), axis=1), DIM, CODE, HARDWARE
        )
        tl.store(_scales_at(values_at, offset, PAGE, DIM), scales, mask=groups < NUM_KV)


def write_bytes(
    q: torch.Tensor | None,
    k: torch.Tensor,
    v: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    view: torch.Tensor,
    write_pages: torch.Tensor,
    write_offsets: torch.Tensor,
) -> None:
    """rope_kv_write to a cache of bytes; without q, kv_write.

    Shapes: q [T, H, D]; k, v [T, G, D]; view [pages, 2, G, page tokens, D + 4]. Mutates: q, k, view
    """
    count, groups, dim = k.shape
    if not count:
        return
    heads = 0 if q is None else q.shape[1]
    half = 1 if q is None else cos_sin.shape[1] // 2
    each = HEADS_EACH if count >= MANY_TOKENS else 1
    queries = k if q is None else q
    _write_bytes_kernel[(count, triton.cdiv(heads, each) + 2 * triton.cdiv(groups, each))](
        queries, k, v, positions, cos_sin, view, write_pages, write_offsets,
        queries.stride(0), queries.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1),
        view.stride(0), view.stride(1), view.stride(2),
        heads, groups, dim, triton.next_power_of_2(dim), half, triton.next_power_of_2(half), each, view.shape[3],
        code_of(view), converts_fp8(view.device), num_warps=1 if each == 1 else 4,
    )  # fmt: skip
