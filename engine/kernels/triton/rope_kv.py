"""Rotary embedding in place, and writing K and V to their pages."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.kernels.triton.cached_bytes import PLAIN, code_of
from engine.kernels.triton.chained import chains, launch, let_next_start, wait_for_last
from engine.kernels.triton.turned_heads import _turned
from engine.kernels.triton.write_bytes import HEADS_EACH, MANY_TOKENS, write_bytes


@triton.jit(do_not_specialize_on_alignment=["positions"])
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


@triton.jit(do_not_specialize_on_alignment=["pages", "offsets"])
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


@triton.jit(do_not_specialize_on_alignment=["positions", "pages", "offsets"])
def _rope_kv_write_kernel(
    q, k, v, positions, cos_sin, view, pages, offsets, q_norm, k_norm, eps,
    q_token_stride, q_head_stride, k_token_stride, k_head_stride, v_token_stride, v_head_stride,
    page_stride, plane_stride, head_stride,
    NUM_Q: tl.constexpr, NUM_KV: tl.constexpr, DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    HALF: tl.constexpr, BLOCK_H: tl.constexpr, HEADS: tl.constexpr, NORMED: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """A program rotates HEADS heads in place, a key's into its page too, or copies value heads there."""
    token = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    q_blocks: tl.constexpr = (NUM_Q + HEADS - 1) // HEADS
    kv_blocks: tl.constexpr = (NUM_KV + HEADS - 1) // HEADS
    page = tl.load(pages + token).to(tl.int64)
    target = view + page * page_stride + tl.load(offsets + token) * DIM
    lanes = tl.arange(0, BLOCK_H)
    in_half = lanes < HALF
    position = tl.load(positions + token)
    cos = tl.load(cos_sin + position * 2 * HALF + lanes, mask=in_half, other=0.0).to(tl.float32)[None, :]
    sin = tl.load(cos_sin + position * 2 * HALF + HALF + lanes, mask=in_half, other=0.0).to(tl.float32)[None, :]
    if CHAINED:
        let_next_start()
        wait_for_last()
    if block < q_blocks + kv_blocks:
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
        first, second, rest = _turned(
            base, mask, lanes, beyond, rest_lanes, cos, sin, norm, eps, q.dtype.element_ty, DIM, HALF, NORMED
        )
        if block >= q_blocks:
            to = target + heads[:, None] * head_stride
            tl.store(to + lanes[None, :], first.to(view.dtype.element_ty), mask=mask)
            tl.store(to + HALF + lanes[None, :], second.to(view.dtype.element_ty), mask=mask)
            if 2 * HALF < DIM:
                tl.store(to + rest_lanes[None, :], rest.to(view.dtype.element_ty), mask=beyond)
    else:
        groups = (block - q_blocks - kv_blocks) * HEADS + tl.arange(0, HEADS)
        all_lanes = tl.arange(0, BLOCK_D)
        real = (groups < NUM_KV)[:, None] & (all_lanes < DIM)[None, :]
        value_base = v + token * v_token_stride + groups[:, None] * v_head_stride
        values = tl.load(value_base + all_lanes[None, :], mask=real, other=0.0)
        value_at = target + plane_stride + groups[:, None] * head_stride + all_lanes[None, :]
        tl.store(value_at, values.to(view.dtype.element_ty), mask=real)


def rope_kv_write(
    q: torch.Tensor,
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
    """rms_norm of each head if there are norms, rope, then kv_write, in one pass.

    Shapes: as rope and kv_write; q_norm, k_norm [D]; kv_scales [2, G]. Mutates: q, k, view
    """
    if code_of(view) != PLAIN:
        write_bytes(q, k, v, positions, cos_sin, view, write_pages, write_offsets, q_norm, k_norm, eps, kv_scales)
        return
    count, heads, dim = q.shape
    groups = k.shape[1]
    half = cos_sin.shape[1] // 2
    each = HEADS_EACH if count >= MANY_TOKENS else 1
    if count:
        _rope_kv_write_kernel[(count, triton.cdiv(heads, each) + 2 * triton.cdiv(groups, each))](
            q, k, v, positions, cos_sin, view, write_pages, write_offsets,
            cos_sin if q_norm is None else q_norm, cos_sin if k_norm is None else k_norm, eps,
            q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1),
            view.stride(0), view.stride(1), view.stride(2),
            heads, groups, dim, triton.next_power_of_2(dim), half, triton.next_power_of_2(half), each,
            q_norm is not None, chains(q.device),
            num_warps=1 if each == 1 else 4, **launch(q.device),
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
    k: torch.Tensor,
    v: torch.Tensor,
    view: torch.Tensor,
    write_pages: torch.Tensor,
    write_offsets: torch.Tensor,
    kv_scales: torch.Tensor | None = None,
) -> None:
    """Shapes: as reference.kv_write. Mutates: view"""
    if code_of(view) != PLAIN:
        write_bytes(None, k, v, write_offsets, write_offsets, view, write_pages, write_offsets, kv_scales=kv_scales)
        return
    count, heads, dim = k.shape
    if count:
        _kv_write_kernel[(count, heads)](
            k, v, view, write_pages, write_offsets,
            k.stride(0), k.stride(1), v.stride(0), v.stride(1), view.stride(0), view.stride(1), view.stride(2),
            dim, triton.next_power_of_2(dim), num_warps=1,
        )  # fmt: skip
