"""Writing K and V to a cache of bytes: rounded by a multiplier a head, own or given, in the pass that rotates."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.kernels.triton.cached_bytes import _coded, _own_scales, _scales_at, _where_finite, code_of
from engine.kernels.triton.device import converts_fp8
from engine.kernels.triton.quantise_rows import largest_size
from engine.kernels.triton.turned_heads import _turned

MANY_TOKENS = 64  # from here on a program takes several heads: fewer would leave it too little to do
HEADS_EACH = 8


@triton.jit
def _larger(first, second):
    """NaN where one is."""
    return tl.maximum(first, second, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _scales_of(given, groups, exists, largest, CODE: tl.constexpr, GIVEN: tl.constexpr):
    """Heads' multipliers. given: where those of a plane lie, which are read if GIVEN"""
    if GIVEN:
        scales = tl.load(given + groups, mask=exists, other=1.0)
    else:
        scales = _own_scales(largest, CODE)
    return _where_finite(scales, largest)


@triton.jit
def _store_part(heads_at, offset, lanes, values, mask, scales, DIM: tl.constexpr, CODE: tl.constexpr,
                HARDWARE: tl.constexpr):  # fmt: skip
    """Codes of some of the heads' numbers."""
    codes = _coded(values, scales, CODE, HARDWARE)
    tl.store(heads_at[:, None] + offset * DIM + lanes[None, :], codes, mask=mask)


@triton.jit(do_not_specialize_on_alignment=["positions", "pages", "offsets"])
def _write_bytes_kernel(
    q, k, v, positions, cos_sin, view, pages, offsets, given, q_norm, k_norm, eps,
    q_token_stride, q_head_stride, k_token_stride, k_head_stride, v_token_stride, v_head_stride,
    page_stride, plane_stride, head_stride,
    NUM_Q: tl.constexpr, NUM_KV: tl.constexpr, DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    HALF: tl.constexpr, BLOCK_H: tl.constexpr, HEADS: tl.constexpr, PAGE: tl.constexpr,
    CODE: tl.constexpr, HARDWARE: tl.constexpr, NORMED: tl.constexpr, GIVEN: tl.constexpr,
):  # fmt: skip
    """A program rotates HEADS heads in place, a key's into its page too, or copies heads there as they are.

    NUM_Q: 0 where nothing is rotated, and K is copied as V is. given: multipliers [2, NUM_KV], read if GIVEN
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
        rest_lanes = tl.arange(0, BLOCK_D)
        is_rest = (rest_lanes >= 2 * HALF) & (rest_lanes < DIM)
        if block < q_blocks:
            heads = block * HEADS + tl.arange(0, HEADS)
            exists = heads < NUM_Q
            base = q + token * q_token_stride + heads[:, None] * q_head_stride
            norm = q_norm
        else:
            heads = (block - q_blocks) * HEADS + tl.arange(0, HEADS)
            exists = heads < NUM_KV
            base = k + token * k_token_stride + heads[:, None] * k_head_stride
            norm = k_norm
        mask = exists[:, None] & in_half[None, :]
        beyond = exists[:, None] & is_rest[None, :]
        turned_first, turned_second, rest = _turned(
            base, mask, lanes, beyond, rest_lanes, cos, sin, norm, eps, q.dtype.element_ty, DIM, HALF, NORMED
        )
        if block >= q_blocks:
            heads_at = target + heads * head_stride
            first = turned_first.to(tl.float32)
            second = turned_second.to(tl.float32)
            largest = _larger(largest_size(first, 1), largest_size(second, 1))
            if 2 * HALF < DIM:
                kept = rest.to(tl.float32)
                largest = _larger(largest, largest_size(kept, 1))
            scales = _scales_of(given, heads, exists, largest, CODE, GIVEN)
            if 2 * HALF < DIM:
                _store_part(heads_at, offset, rest_lanes, kept, beyond, scales, DIM, CODE, HARDWARE)
            _store_part(heads_at, offset, lanes + HALF, second, mask, scales, DIM, CODE, HARDWARE)
            _store_part(heads_at, offset, lanes, first, mask, scales, DIM, CODE, HARDWARE)
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
        largest = largest_size(values, 1)
        scales = _scales_of(given + plane * NUM_KV, groups, groups < NUM_KV, largest, CODE, GIVEN)
        _store_part(values_at, offset, all_lanes, values, real, scales, DIM, CODE, HARDWARE)
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
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
    eps: float = 0.0,
    kv_scales: torch.Tensor | None = None,
) -> None:
    """rope_kv_write to a cache of bytes; without q, kv_write.

    Shapes: q [T, H, D]; k, v [T, G, D]; view [pages, 2, G, page tokens, D + 4]; norms [D]; kv_scales [2, G] float32
    Mutates: q, k, view
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
        cos_sin if kv_scales is None else kv_scales,
        cos_sin if q_norm is None else q_norm, cos_sin if k_norm is None else k_norm, eps,
        queries.stride(0), queries.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1),
        view.stride(0), view.stride(1), view.stride(2),
        heads, groups, dim, triton.next_power_of_2(dim), half, triton.next_power_of_2(half), each, view.shape[3],
        code_of(view), converts_fp8(view.device), q_norm is not None, kv_scales is not None,
        num_warps=1 if each == 1 else 4,
    )  # fmt: skip
