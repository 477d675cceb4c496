"""Paged attention of a few queries a sequence, as checking a draft has: split over the context like a decode.

A program takes all of a sequence's queries with all heads of a group, so the context is read once for them, and each
query sees what is up to it. The chunks' kernel would read it with one program a head, on a device that is mostly idle.
"""

from __future__ import annotations

import triton
import triton.language as tl

from engine.kernels.triton.attention_decode import PART_TOKENS, _merged
from engine.kernels.triton.attention_prefill import READ_ONE_BY_ONE, _base2, _in_half
from engine.kernels.triton.cached_bytes import _bias, _in_range, _limit, _numbers, _scales_at

MOST_QUERIES = 8
MOST_ROWS = 64  # of a program: queries times the heads that share a KV head


def few_queries(repeat_pad: int) -> int:
    """The most queries a sequence may have here; 1 where no more than one fit. repeat_pad: heads of a KV head"""
    return max(1, min(MOST_QUERIES, MOST_ROWS // repeat_pad))


@triton.jit(do_not_specialize=["splits", "table_stride"], do_not_specialize_on_alignment=READ_ONE_BY_ONE)
def _few_kernel(
    q, view, out, partial, partial_stats, block_tables, query_starts, context_lens, sinks,
    q_token_stride, q_head_stride, table_stride, page_stride, plane_stride, head_stride,
    num_heads, scale, splits,
    REPEAT: tl.constexpr, REPEAT_PAD: tl.constexpr, FEW: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    DIM: tl.constexpr, BLOCK_D: tl.constexpr, PAGE: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr,
    HAS_SINKS: tl.constexpr, SPLIT: tl.constexpr, CODE: tl.constexpr, TYPE: tl.constexpr, HARDWARE: tl.constexpr,
):  # fmt: skip
    """FEW: the most queries. Partial sums lie by sequence, query, head and part."""
    sequence = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    first_row = tl.load(query_starts + sequence).to(tl.int64)
    count = (tl.load(query_starts + sequence + 1) - first_row).to(tl.int32)
    if (count < 2) | (count > FEW):
        return
    context = tl.load(context_lens + sequence)
    rows = tl.arange(0, BLOCK_M)
    query = rows // REPEAT_PAD
    head = rows % REPEAT_PAD
    real = (query < count) & (head < REPEAT)
    q_heads = kv_head * REPEAT + head
    place = ((sequence * FEW + query) * num_heads + q_heads) * splits + split
    # Parts are of whole tiles, of one size but the last, from the first key that the first query sees.
    begin = 0
    if WINDOW > 0:
        begin = tl.maximum(0, context - count + 1 - WINDOW) // BLOCK_N * BLOCK_N
    tiles = tl.cdiv(context - begin, BLOCK_N)
    per_split = tl.maximum(tl.cdiv(tiles, splits), PART_TOKENS // BLOCK_N)
    start = begin + split * per_split * BLOCK_N
    end = tl.minimum(start + per_split * BLOCK_N, context)
    if SPLIT & (start >= end):
        tl.store(partial_stats + place * 2, float("-inf"), mask=real)
        tl.store(partial_stats + place * 2 + 1, 0.0, mask=real)
        return
    lanes = tl.arange(0, BLOCK_D)
    in_dim = lanes < DIM
    kept = real[:, None] & in_dim[None, :]
    q_base = (first_row + query) * q_token_stride + q_heads * q_head_stride
    queries = tl.load(q + q_base[:, None] + lanes[None, :], mask=kept, other=0.0)
    if CODE != 0:
        queries, largest = _in_half(queries, TYPE)
        factor = largest * (scale * _bias(CODE, HARDWARE))
    position = context - count + query
    maximum = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    if HAS_SINKS:  # noqa: SIM102 - known when compiling; the next line is not
        if split == 0:
            maximum = tl.load(sinks + q_heads, mask=head < REPEAT, other=0.0).to(tl.float32) * 1.4426950408889634
            total += 1.0
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    # Tiles that every query sees whole need no mask.
    plain_end = (context - count + 1) // BLOCK_N * BLOCK_N
    window_end = 0
    if WINDOW > 0:
        window_end = context - WINDOW
    table = block_tables + sequence * table_stride
    base = view + kv_head * head_stride
    for tile in range(start, end, BLOCK_N):
        keys = tile + tl.arange(0, BLOCK_N)
        exists = keys < end
        page = tl.load(table + keys // PAGE, mask=exists, other=0).to(tl.int64)
        heads_at = base + page * page_stride
        rows_at = heads_at + (keys % PAGE) * DIM
        k_tile = tl.load(rows_at[None, :] + lanes[:, None], mask=exists[None, :] & in_dim[:, None], other=0)
        if CODE == 0:
            s = tl.dot(queries, k_tile.to(TYPE)) * scale
        else:
            k_scales = tl.load(_scales_at(heads_at, keys % PAGE, PAGE, DIM), mask=exists, other=0.0)
            s = tl.dot(queries, _numbers(k_tile, CODE, HARDWARE).to(TYPE)) * (factor[:, None] * k_scales[None, :])
        s = _base2(s, SOFTCAP)
        if (tile >= plain_end) | (tile < window_end):
            seen = keys[None, :] <= position[:, None]
            if WINDOW > 0:
                seen = seen & (keys[None, :] > position[:, None] - WINDOW)
            s = tl.where(exists[None, :] & seen, s, float("-inf"))
        new_maximum = tl.maximum(maximum, tl.max(s, axis=1))
        safe = tl.where(new_maximum == float("-inf"), 0.0, new_maximum)
        p = tl.exp2(s - safe[:, None])
        shrink = tl.exp2(maximum - safe)
        total = total * shrink + tl.sum(p, axis=1)
        v_tile = tl.load(
            rows_at[:, None] + plane_stride + lanes[None, :], mask=exists[:, None] & in_dim[None, :], other=0
        )
        acc = acc * shrink[:, None]
        if CODE == 0:
            acc = tl.dot(p.to(TYPE), v_tile.to(TYPE), acc)
        else:
            v_scales = tl.load(_scales_at(heads_at + plane_stride, keys % PAGE, PAGE, DIM), mask=exists, other=0.0)
            p = _in_range(p * (v_scales * _limit(CODE))[None, :])
            acc = tl.dot(p.to(TYPE), _numbers(v_tile, CODE, HARDWARE).to(TYPE), acc)
        maximum = new_maximum
    if CODE != 0:
        acc = acc * (_bias(CODE, HARDWARE) / _limit(CODE))
    if not SPLIT:
        acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
        out_at = out + ((first_row + query) * num_heads + q_heads)[:, None] * DIM + lanes[None, :]
        tl.store(out_at, acc.to(out.dtype.element_ty), mask=kept)
    else:
        tl.store(partial + place[:, None] * DIM + lanes[None, :], acc, mask=kept)
        tl.store(partial_stats + place * 2, maximum, mask=real)
        tl.store(partial_stats + place * 2 + 1, total, mask=real)


@triton.jit(do_not_specialize=["splits"], do_not_specialize_on_alignment=READ_ONE_BY_ONE)
def _merge_few_kernel(
    partial, partial_stats, out, query_starts, num_heads, splits,
    FEW: tl.constexpr, DIM: tl.constexpr, BLOCK_D: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    """A program a query and head. MOST: parts there may be"""
    place = tl.program_id(0).to(tl.int64)
    head = place % num_heads
    query = place // num_heads % FEW
    sequence = place // num_heads // FEW
    first_row = tl.load(query_starts + sequence).to(tl.int64)
    count = tl.load(query_starts + sequence + 1) - first_row
    if (count < 2) | (count > FEW) | (query >= count):
        return
    lanes = tl.arange(0, BLOCK_D)
    in_dim = lanes < DIM
    value = _merged(partial, partial_stats, place, lanes, in_dim, splits, DIM, MOST)
    out_at = out + ((first_row + query) * num_heads + head) * DIM + lanes
    tl.store(out_at, value.to(out.dtype.element_ty), mask=in_dim)
