"""Rotary embedding in place, and writing K and V to their pages."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _rope_kernel(
    q, k, positions, cos_sin,
    q_token_stride, q_head_stride, k_token_stride, k_head_stride,
    NUM_Q: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    lanes = tl.arange(0, BLOCK)
    mask = lanes < HALF
    position = tl.load(positions + token)
    cos = tl.load(cos_sin + position * 2 * HALF + lanes, mask=mask, other=0.0).to(tl.float32)
    sin = tl.load(cos_sin + position * 2 * HALF + HALF + lanes, mask=mask, other=0.0).to(tl.float32)
    if head < NUM_Q:
        base = q + token * q_token_stride + head * q_head_stride
    else:
        base = k + token * k_token_stride + (head - NUM_Q) * k_head_stride
    first = tl.load(base + lanes, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(base + HALF + lanes, mask=mask, other=0.0).to(tl.float32)
    tl.store(base + lanes, (first * cos - second * sin).to(q.dtype.element_ty), mask=mask)
    tl.store(base + HALF + lanes, (second * cos + first * sin).to(q.dtype.element_ty), mask=mask)


@triton.jit
def _kv_write_kernel(
    k, v, view, pages, offsets,
    k_token_stride, k_head_stride, v_token_stride, v_head_stride, page_stride, plane_stride, head_stride,
    DIM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    lanes = tl.arange(0, BLOCK)
    mask = lanes < DIM
    page = tl.load(pages + token).to(tl.int64)
    offset = tl.load(offsets + token)
    target = view + page * page_stride + head * head_stride + offset * DIM + lanes
    keys = tl.load(k + token * k_token_stride + head * k_head_stride + lanes, mask=mask, other=0.0)
    values = tl.load(v + token * v_token_stride + head * v_head_stride + lanes, mask=mask, other=0.0)
    tl.store(target, keys.to(view.dtype.element_ty), mask=mask)
    tl.store(target + plane_stride, values.to(view.dtype.element_ty), mask=mask)


@triton.jit
def _rope_kv_write_kernel(
    q, k, v, positions, cos_sin, view, pages, offsets,
    q_token_stride, q_head_stride, k_token_stride, k_head_stride, v_token_stride, v_head_stride,
    page_stride, plane_stride, head_stride,
    NUM_Q: tl.constexpr, NUM_KV: tl.constexpr, DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    HALF: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    """A program rotates a query head in place, or a key head into its page, or copies a value head there."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    page = tl.load(pages + token).to(tl.int64)
    target = view + page * page_stride + tl.load(offsets + token) * DIM
    if head < NUM_Q + NUM_KV:
        lanes = tl.arange(0, BLOCK_H)
        mask = lanes < HALF
        position = tl.load(positions + token)
        cos = tl.load(cos_sin + position * 2 * HALF + lanes, mask=mask, other=0.0).to(tl.float32)
        sin = tl.load(cos_sin + position * 2 * HALF + HALF + lanes, mask=mask, other=0.0).to(tl.float32)
        if head < NUM_Q:
            base = q + token * q_token_stride + head * q_head_stride
        else:
            base = k + token * k_token_stride + (head - NUM_Q) * k_head_stride
        first = tl.load(base + lanes, mask=mask, other=0.0).to(tl.float32)
        second = tl.load(base + HALF + lanes, mask=mask, other=0.0).to(tl.float32)
        rotated_first = (first * cos - second * sin).to(q.dtype.element_ty)
        rotated_second = (second * cos + first * sin).to(q.dtype.element_ty)
        if head < NUM_Q:
            tl.store(base + lanes, rotated_first, mask=mask)
            tl.store(base + HALF + lanes, rotated_second, mask=mask)
        else:
            to = target + (head - NUM_Q) * head_stride
            tl.store(to + lanes, rotated_first.to(view.dtype.element_ty), mask=mask)
            tl.store(to + HALF + lanes, rotated_second.to(view.dtype.element_ty), mask=mask)
            if 2 * HALF < DIM:
                rest = tl.arange(0, BLOCK_D)
                beyond = (rest >= 2 * HALF) & (rest < DIM)
                kept = tl.load(base + rest, mask=beyond, other=0.0)
                tl.store(to + rest, kept.to(view.dtype.element_ty), mask=beyond)
    else:
        group = head - NUM_Q - NUM_KV
        all_lanes = tl.arange(0, BLOCK_D)
        in_dim = all_lanes < DIM
        values = tl.load(v + token * v_token_stride + group * v_head_stride + all_lanes, mask=in_dim, other=0.0)
        value_at = target + plane_stride + group * head_stride + all_lanes
        tl.store(value_at, values.to(view.dtype.element_ty), mask=in_dim)


def rope_kv_write(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    view: torch.Tensor,
    write_pages: torch.Tensor,
    write_offsets: torch.Tensor,
) -> None:
    """rope, then kv_write, in one pass. k itself is left as it was.

    Shapes: as rope and kv_write. Mutates: q, view
    """
    count, heads, dim = q.shape
    groups = k.shape[1]
    half = cos_sin.shape[1] // 2
    if count:
        _rope_kv_write_kernel[(count, heads + 2 * groups)](
            q, k, v, positions, cos_sin, view, write_pages, write_offsets,
            q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1),
            view.stride(0), view.stride(1), view.stride(2),
            heads, groups, dim, triton.next_power_of_2(dim), half, triton.next_power_of_2(half), num_warps=1,
        )  # fmt: skip


def rope(q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor) -> None:
    """Shapes: q [T, H, D]; k [T, G, D]; positions [T] int64; cos_sin [P, R] float32. Mutates: q, k"""
    count, heads = q.shape[0], q.shape[1]
    half = cos_sin.shape[1] // 2
    if count:
        _rope_kernel[(count, heads + k.shape[1])](
            q, k, positions, cos_sin, q.stride(0), q.stride(1), k.stride(0), k.stride(1),
            heads, half, triton.next_power_of_2(half), num_warps=1,
        )  # fmt: skip


def kv_write(
    k: torch.Tensor, v: torch.Tensor, view: torch.Tensor, write_pages: torch.Tensor, write_offsets: torch.Tensor
) -> None:
    """Shapes: k, v [T, G, D]; view [pages, 2, G, page tokens, D]; write_pages, write_offsets [T]. Mutates: view"""
    count, heads, dim = k.shape
    if count:
        _kv_write_kernel[(count, heads)](
            k, v, view, write_pages, write_offsets,
            k.stride(0), k.stride(1), v.stride(0), v.stride(1), view.stride(0), view.stride(1), view.stride(2),
            dim, triton.next_power_of_2(dim), num_warps=1,
        )  # fmt: skip
