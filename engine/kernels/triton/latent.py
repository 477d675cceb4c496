"""Attention of all heads over one compressed row a token, for decode and prefill alike.

A program takes one query token and a block of its heads, and one part of the keys it sees; parts are merged after. The
row is the key, and its leading part the value, so each tile is read once. Grids depend on shapes alone.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.kernels.triton.attention import PROGRAMS_WANTED, num_splits
from engine.kernels.triton.attention_decode import PART_TOKENS, _merge_kernel, _store_no_part
from engine.kernels.triton.attention_prefill import READ_ONE_BY_ONE, SEARCH_STEPS
from engine.kernels.triton.attention_tiles import Tile, shared_bytes
from engine.kernels.triton.device import units_of

FEW_HEADS = Tile(16, 32, 4, 2)  # heads a program, as few as a matrix unit takes; two programs fit a unit
SOME_HEADS = Tile(32, 32, 4, 2)
# Of 64 heads and more: a row is read for so many of them at once. One program fills a unit that holds its tiles.
MANY_HEADS = Tile(64, 64, 8, 2)


@triton.jit(
    do_not_specialize=["num_sequences", "splits", "table_stride"], do_not_specialize_on_alignment=READ_ONE_BY_ONE
)
def _latent_kernel(
    q, view, out, partial, partial_stats, block_tables, query_starts, context_lens,
    q_token_stride, q_head_stride, table_stride, page_stride, num_sequences, num_heads, scale, splits,
    LATENT: tl.constexpr, BLOCK_L: tl.constexpr, TURNED: tl.constexpr, BLOCK_R: tl.constexpr, PAGE: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_N: tl.constexpr, SPLIT: tl.constexpr, SEARCH_STEPS: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0)
    split = tl.program_id(2)
    low = 0
    high = num_sequences - 1
    for _ in range(SEARCH_STEPS):
        middle = (low + high + 1) // 2
        if tl.load(query_starts + middle) <= token:
            low = middle
        else:
            high = middle - 1
    # The token's own key is the last it sees; later tokens of its sequence lie behind it.
    seen = tl.load(context_lens + low) - (tl.load(query_starts + low + 1) - token) + 1
    per_split = tl.maximum(tl.cdiv(tl.cdiv(seen, BLOCK_N), splits), PART_TOKENS // BLOCK_N)
    start = split * per_split * BLOCK_N
    end = tl.minimum(start + per_split * BLOCK_N, seen)
    heads = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    real = heads < num_heads
    if SPLIT & (start >= end):
        _store_no_part(partial_stats, heads, token.to(tl.int64) * num_heads, split, splits, real)
        return
    latent = tl.arange(0, BLOCK_L)
    in_latent = latent < LATENT
    turned = tl.arange(0, BLOCK_R)
    in_turned = turned < TURNED
    q_at = q + token.to(tl.int64) * q_token_stride + heads[:, None] * q_head_stride
    q_latent = tl.load(q_at + latent[None, :], mask=real[:, None] & in_latent[None, :], other=0.0)
    q_turned = tl.load(q_at + LATENT + turned[None, :], mask=real[:, None] & in_turned[None, :], other=0.0)
    maximum = tl.full([BLOCK_H], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_H], tl.float32)
    acc = tl.zeros([BLOCK_H, BLOCK_L], tl.float32)
    table = block_tables + low.to(tl.int64) * table_stride
    for tile in range(start, end, BLOCK_N):
        keys = tile + tl.arange(0, BLOCK_N)
        exists = keys < end
        page = tl.load(table + keys // PAGE, mask=exists, other=0).to(tl.int64)
        rows_at = view + page * page_stride + (keys % PAGE) * (LATENT + TURNED)
        rows = tl.load(rows_at[:, None] + latent[None, :], mask=exists[:, None] & in_latent[None, :], other=0.0)
        k_turned = tl.load(
            rows_at[None, :] + LATENT + turned[:, None], mask=exists[None, :] & in_turned[:, None], other=0.0
        )
        rows = rows.to(q_latent.dtype)
        s = tl.dot(q_latent, tl.trans(rows))
        s = tl.dot(q_turned, k_turned.to(q_turned.dtype), s) * (scale * 1.4426950408889634)
        s = tl.where(exists[None, :], s, float("-inf"))
        new_maximum = tl.maximum(maximum, tl.max(s, axis=1))
        safe = tl.where(new_maximum == float("-inf"), 0.0, new_maximum)
        p = tl.exp2(s - safe[:, None])
        shrink = tl.exp2(maximum - safe)
        total = total * shrink + tl.sum(p, axis=1)
        acc = tl.dot(p.to(rows.dtype), rows, acc * shrink[:, None])
        maximum = new_maximum
    row = token.to(tl.int64) * num_heads + heads
    kept = real[:, None] & in_latent[None, :]
    if not SPLIT:
        acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
        tl.store(out + row[:, None] * LATENT + latent[None, :], acc.to(out.dtype.element_ty), mask=kept)
    else:
        place = row * splits + split
        tl.store(partial + place[:, None] * LATENT + latent[None, :], acc, mask=kept)
        tl.store(partial_stats + place * 2, maximum, mask=real)
        tl.store(partial_stats + place * 2 + 1, total, mask=real)


@triton.jit(do_not_specialize_on_alignment=["write_pages", "write_offsets"])
def _write_kernel(rows, view, write_pages, write_offsets, row_stride, page_stride, WIDTH: tl.constexpr,
                  BLOCK: tl.constexpr):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    page = tl.load(write_pages + token).to(tl.int64)
    offset = tl.load(write_offsets + token).to(tl.int64)
    lanes = tl.arange(0, BLOCK)
    values = tl.load(rows + token * row_stride + lanes, mask=lanes < WIDTH)
    to = view + page * page_stride + offset * WIDTH + lanes
    tl.store(to, values.to(view.dtype.element_ty), mask=lanes < WIDTH)


def latent_write(
    rows: torch.Tensor, view: torch.Tensor, write_pages: torch.Tensor, write_offsets: torch.Tensor
) -> None:
    """Shapes as reference.latent_write. Mutates: view"""
    count, width = rows.shape
    if count:
        _write_kernel[(count,)](
            rows, view, write_pages, write_offsets, rows.stride(0), view.stride(0),
            width, triton.next_power_of_2(width), num_warps=2,
        )  # fmt: skip


def paged_latent_attention(
    q: torch.Tensor,
    view: torch.Tensor,
    block_tables: torch.Tensor,
    query_starts: torch.Tensor,
    context_lens: torch.Tensor,
    scale: float,
    latent_dim: int,
) -> torch.Tensor:
    """Shapes and meaning as reference.paged_latent_attention; q's last dimension is contiguous."""
    num_tokens, num_heads, width = q.shape
    out = torch.empty(num_tokens, num_heads, latent_dim, dtype=q.dtype, device=q.device)
    if num_tokens == 0:
        return out
    page = view.shape[3]
    tile, wanted = _tile(num_heads, width, view)
    blocks = triton.cdiv(num_heads, tile.block_m)
    splits = num_splits(num_tokens * blocks, block_tables.shape[1] * page, wanted)
    partial = stats = out
    if splits > 1:
        partial = torch.empty(num_tokens * num_heads * splits, latent_dim, dtype=torch.float32, device=q.device)
        stats = torch.empty(num_tokens * num_heads * splits, 2, dtype=torch.float32, device=q.device)
    block_l = max(16, triton.next_power_of_2(latent_dim))
    _latent_kernel[(num_tokens, blocks, splits)](
        q, view, out, partial, stats, block_tables, query_starts, context_lens,
        q.stride(0), q.stride(1), block_tables.stride(0), view.stride(0), context_lens.shape[0], num_heads, scale,
        splits,
        latent_dim, block_l, width - latent_dim, max(16, triton.next_power_of_2(width - latent_dim)), page,
        tile.block_m, tile.block_n, splits > 1, SEARCH_STEPS, num_warps=tile.num_warps, num_stages=tile.num_stages,
    )  # fmt: skip
    if splits > 1:
        _merge_kernel[(num_tokens * num_heads,)](
            partial, stats, out, query_starts, num_heads, splits, latent_dim, block_l, splits, False, False, num_warps=4
        )
    return out


def _tile(num_heads: int, width: int, view: torch.Tensor) -> tuple[Tile, int]:
    """A program's tile, and how many programs fill the device."""
    many = MANY_HEADS
    rows = many.block_m + many.num_stages * many.block_n + many.block_m // 8  # queries, tiles in flight, weights
    if num_heads >= many.block_m and rows * width * view.element_size() <= shared_bytes(view.device):
        return many, units_of(view.device)
    return SOME_HEADS if num_heads >= SOME_HEADS.block_m else FEW_HEADS, PROGRAMS_WANTED
