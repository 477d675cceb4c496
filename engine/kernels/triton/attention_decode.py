"""Paged attention of one query a sequence, split over the context: parts are merged by their sums and maxima.

A row's parts depend on its length and the shapes of a step alone, so its result does not depend on what else the step
computes. Grids depend on shapes alone, never on lengths, so that a step can be captured and replayed: of a short
context in a wide table most programs have no part and end at once.
"""

from __future__ import annotations

import triton
import triton.language as tl

from engine.kernels.triton.attention_prefill import READ_ONE_BY_ONE, _base2
from engine.kernels.triton.chained import let_next_start, wait_for_last

# A shorter part costs more than it saves.
PART_TOKENS = tl.constexpr(64)
LINE_BYTES = tl.constexpr(128)  # of the device's caches


@triton.jit
def _row_of(query_starts, sequence, MIXED: tl.constexpr):
    """The sequence's row, or -1 where it has not one query. MIXED: sequences may have more"""
    row = sequence
    if MIXED:
        row = tl.load(query_starts + sequence).to(tl.int64)
        row = tl.where(tl.load(query_starts + sequence + 1) - row == 1, row, -1)
    return row


@triton.jit
def _part_of(context, split, splits, WINDOW: tl.constexpr, BLOCK_N: tl.constexpr):
    """(first key that is seen, the part's start and end): parts are of whole tiles, of one size but the last."""
    first = 0
    if WINDOW > 0:
        first = tl.maximum(0, context - WINDOW)
    tiles = tl.cdiv(context - first // BLOCK_N * BLOCK_N, BLOCK_N)
    per_split = tl.maximum(tl.cdiv(tiles, splits), PART_TOKENS // BLOCK_N)
    start = first // BLOCK_N * BLOCK_N + split * per_split * BLOCK_N
    end = tl.minimum(start + per_split * BLOCK_N, context)
    return first, start, end


@triton.jit
def _ask_ahead(table, head, plane_bytes, page_bytes, start, end, PAGE: tl.constexpr, ROW_BYTES: tl.constexpr,
               BLOCK_N: tl.constexpr):  # fmt: skip
    """Have the part's first keys and values, and their pages' numbers, on their way while kernels before are at work.

    head: the address of the head's first key in page 0. The newest of them may not be written yet: nothing is kept.
    """
    LINES: tl.constexpr = (ROW_BYTES + LINE_BYTES - 1) // LINE_BYTES
    keys = tl.minimum(start + tl.arange(0, BLOCK_N), tl.maximum(end - 1, 0))
    page = tl.load(table + keys // PAGE).to(tl.int64)
    rows = head.to(tl.int64) + page * page_bytes + (keys % PAGE) * ROW_BYTES
    for line in tl.static_range(LINES):
        for plane in tl.static_range(2):
            tl.inline_asm_elementwise(
                "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [rows + line * LINE_BYTES + plane * plane_bytes],
                dtype=tl.int32, is_pure=False, pack=1,
            )  # fmt: skip


@triton.jit
def _store_no_part(partial_stats, heads, first_row, split, splits, real):
    """What the merge knows a part without keys by; its sums are left as they are."""
    place = (first_row + heads) * splits + split
    tl.store(partial_stats + place * 2, float("-inf"), mask=real)
    tl.store(partial_stats + place * 2 + 1, 0.0, mask=real)


@triton.jit(do_not_specialize=["splits", "table_stride"], do_not_specialize_on_alignment=READ_ONE_BY_ONE)
def _decode_kernel(
    q, view, out, partial, partial_stats, block_tables, query_starts, context_lens, sinks,
    q_token_stride, q_head_stride, table_stride, page_stride, plane_stride, head_stride,
    num_heads, scale, splits,
    REPEAT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    PAGE: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, HAS_SINKS: tl.constexpr, SPLIT: tl.constexpr,
    MIXED: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    row = _row_of(query_starts, sequence, MIXED)
    context = tl.load(context_lens + sequence)
    first, start, end = _part_of(context, split, splits, WINDOW, BLOCK_N)
    table = block_tables + sequence * table_stride
    base = view + kv_head * head_stride
    if CHAINED:  # noqa: SIM102 - known when compiling; the next line is not
        if (row >= 0) & (start < end):
            SIZE: tl.constexpr = view.dtype.element_ty.primitive_bitwidth // 8
            _ask_ahead(table, base, plane_stride * SIZE, page_stride * SIZE, start, end, PAGE, DIM * SIZE, BLOCK_N)
    if CHAINED:
        let_next_start()
        wait_for_last()
    if row < 0:
        return
    rows = tl.arange(0, BLOCK_M)
    real = rows < REPEAT
    q_heads = kv_head * REPEAT + rows
    if SPLIT & (start >= end):
        _store_no_part(partial_stats, q_heads, sequence * num_heads, split, splits, real)
        return
    lanes = tl.arange(0, BLOCK_D)
    in_dim = lanes < DIM
    q_at = q + row * q_token_stride + q_heads[:, None] * q_head_stride + lanes[None, :]
    queries = tl.load(q_at, mask=real[:, None] & in_dim[None, :], other=0.0)
    maximum = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    if HAS_SINKS:  # noqa: SIM102 - known when compiling; the next line is not
        if split == 0:
            maximum = tl.load(sinks + q_heads, mask=real, other=0.0).to(tl.float32) * 1.4426950408889634
            total += 1.0
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for tile in range(start, end, BLOCK_N):
        keys = tile + tl.arange(0, BLOCK_N)
        exists = keys < end
        page = tl.load(table + keys // PAGE, mask=exists, other=0).to(tl.int64)
        rows_at = base + page * page_stride + (keys % PAGE) * DIM
        k_tile = tl.load(rows_at[None, :] + lanes[:, None], mask=exists[None, :] & in_dim[:, None], other=0.0)
        v_tile = tl.load(
            rows_at[:, None] + plane_stride + lanes[None, :], mask=exists[:, None] & in_dim[None, :], other=0.0
        )
        s = _base2(tl.dot(queries, k_tile.to(queries.dtype)) * scale, SOFTCAP)
        s = tl.where((exists & (keys >= first))[None, :], s, float("-inf"))
        new_maximum = tl.maximum(maximum, tl.max(s, axis=1))
        safe = tl.where(new_maximum == float("-inf"), 0.0, new_maximum)
        p = tl.exp2(s - safe[:, None])
        shrink = tl.exp2(maximum - safe)
        total = total * shrink + tl.sum(p, axis=1)
        acc = acc * shrink[:, None]
        acc = tl.dot(p.to(queries.dtype), v_tile.to(queries.dtype), acc)
        maximum = new_maximum
    if not SPLIT:
        acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
        out_at = out + (row * num_heads + q_heads[:, None]) * DIM + lanes[None, :]
        tl.store(out_at, acc.to(out.dtype.element_ty), mask=real[:, None] & in_dim[None, :])
    else:
        place = (sequence * num_heads + q_heads) * splits + split
        tl.store(partial + place[:, None] * DIM + lanes[None, :], acc, mask=real[:, None] & in_dim[None, :])
        tl.store(partial_stats + place * 2, maximum, mask=real)
        tl.store(partial_stats + place * 2 + 1, total, mask=real)


@triton.jit
def _merged(partial, partial_stats, first, lanes, in_dim, splits, DIM: tl.constexpr, MOST: tl.constexpr):
    """A query's head from its parts, which stand from first * splits on. MOST: parts there may be"""
    parts = tl.arange(0, MOST)
    exists = parts < splits
    place = first * splits + parts
    maximum = tl.load(partial_stats + place * 2, mask=exists, other=float("-inf"))
    total = tl.load(partial_stats + place * 2 + 1, mask=exists, other=0.0)
    highest = tl.max(maximum, axis=0)
    weight = tl.exp2(maximum - tl.where(highest == float("-inf"), 0.0, highest))
    kept = (exists & (maximum > float("-inf")))[:, None] & in_dim[None, :]  # parts without keys stored no sums
    values = tl.load(partial + place[:, None] * DIM + lanes[None, :], mask=kept, other=0.0)
    norm = tl.sum(total * weight, axis=0)
    return tl.sum(values * weight[:, None], axis=0) / tl.where(norm == 0.0, 1.0, norm)


@triton.jit(do_not_specialize=["splits"], do_not_specialize_on_alignment=READ_ONE_BY_ONE)
def _merge_kernel(
    partial, partial_stats, out, query_starts, num_heads, splits,
    DIM: tl.constexpr, BLOCK_D: tl.constexpr, MOST: tl.constexpr, MIXED: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """MOST: parts there may be"""
    head = tl.program_id(0).to(tl.int64)
    row = _row_of(query_starts, head // num_heads, MIXED)
    if CHAINED:
        let_next_start()
        wait_for_last()
    if row < 0:
        return
    lanes = tl.arange(0, BLOCK_D)
    in_dim = lanes < DIM
    value = _merged(partial, partial_stats, head, lanes, in_dim, splits, DIM, MOST)
    tl.store(out + (row * num_heads + head % num_heads) * DIM + lanes, value.to(out.dtype.element_ty), mask=in_dim)
