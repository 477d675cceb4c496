"""attention_decode over a cache of bytes: half the memory to read, so the numbers must be made in few operations.

Bytes are read in pairs, as words of 16 bits, since only such can be turned around on their way from shared memory to
the tensor units. A word's low bytes are a head's even numbers and its high ones the odd: two products of half the
width, with the queries' even and odd numbers. Multipliers of keys go to the scores, those of values to the weights.
"""

from __future__ import annotations

import triton
import triton.language as tl

from engine.kernels.triton.attention_decode import _ask_ahead, _part_of, _row_of, _store_no_part
from engine.kernels.triton.attention_prefill import READ_ONE_BY_ONE, _base2
from engine.kernels.triton.cached_bytes import _bias, _halves, _in_range, _limit, _scales_at
from engine.kernels.triton.chained import let_next_start, wait_for_last


@triton.jit(do_not_specialize=["splits", "table_stride"], do_not_specialize_on_alignment=READ_ONE_BY_ONE)
def _decode_bytes_kernel(
    q, view, out, partial, partial_stats, block_tables, query_starts, context_lens, sinks,
    q_token_stride, q_head_stride, table_stride, page_stride, plane_stride, head_stride,
    num_heads, scale, splits,
    REPEAT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, DIM: tl.constexpr, BLOCK_P: tl.constexpr,
    PAGE: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, HAS_SINKS: tl.constexpr, SPLIT: tl.constexpr,
    MIXED: tl.constexpr, CODE: tl.constexpr, TYPE: tl.constexpr, PTX: tl.constexpr, HARDWARE: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """BLOCK_P: pairs of a head, up to the next power of two. Strides of the view are in bytes"""
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
            _ask_ahead(table, base, plane_stride, page_stride, start, end, PAGE, DIM, BLOCK_N)
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
    pairs = tl.arange(0, BLOCK_P)
    in_dim = pairs < DIM // 2
    kept = real[:, None] & in_dim[None, :]
    q_at = q + row * q_token_stride + q_heads[:, None] * q_head_stride + 2 * pairs[None, :]
    q_even = tl.load(q_at, mask=kept, other=0.0).to(tl.float32)
    q_odd = tl.load(q_at + 1, mask=kept, other=0.0).to(tl.float32)
    largest = tl.maximum(tl.max(tl.maximum(tl.abs(q_even), tl.abs(q_odd)), axis=1), 1e-20)
    q_even = (q_even / largest[:, None]).to(TYPE)
    q_odd = (q_odd / largest[:, None]).to(TYPE)
    factor = largest * (scale * _bias(CODE, HARDWARE))
    if SOFTCAP == 0:
        factor = factor * 1.4426950408889634
    maximum = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    if HAS_SINKS:  # noqa: SIM102 - known when compiling; the next line is not
        if split == 0:
            maximum = tl.load(sinks + q_heads, mask=real, other=0.0).to(tl.float32) * 1.4426950408889634
            total += 1.0
    even = tl.zeros([BLOCK_M, BLOCK_P], tl.float32)
    odd = tl.zeros([BLOCK_M, BLOCK_P], tl.float32)
    for tile in range(start, end, BLOCK_N):
        keys = tile + tl.arange(0, BLOCK_N)
        exists = keys < end
        page = tl.load(table + keys // PAGE, mask=exists, other=0).to(tl.int64)
        heads_at = base + page * page_stride
        k_at = (heads_at + (keys % PAGE) * DIM).to(tl.pointer_type(tl.int16))
        v_at = (heads_at + plane_stride + (keys % PAGE) * DIM).to(tl.pointer_type(tl.int16))
        k_words = tl.load(k_at[None, :] + pairs[:, None], mask=exists[None, :] & in_dim[:, None], other=0)
        v_words = tl.load(v_at[:, None] + pairs[None, :], mask=exists[:, None] & in_dim[None, :], other=0)
        k_scales = tl.load(_scales_at(heads_at, keys % PAGE, PAGE, DIM), mask=exists, other=0.0)
        v_scales = tl.load(_scales_at(heads_at + plane_stride, keys % PAGE, PAGE, DIM), mask=exists, other=0.0)
        k_even, k_odd = _halves(k_words, CODE, PTX, HARDWARE)
        s = tl.dot(q_odd, k_odd.to(TYPE), tl.dot(q_even, k_even.to(TYPE)))
        s = s * (factor[:, None] * k_scales[None, :])
        if SOFTCAP > 0:
            s = _base2(s, SOFTCAP)
        s = tl.where((exists & (keys >= first))[None, :], s, float("-inf"))
        new_maximum = tl.maximum(maximum, tl.max(s, axis=1))
        safe = tl.where(new_maximum == float("-inf"), 0.0, new_maximum)
        p = tl.exp2(s - safe[:, None])
        shrink = tl.exp2(maximum - safe)
        total = total * shrink + tl.sum(p, axis=1)
        # The multiplier times the largest code: what the head's numbers are below, so that float16 holds it.
        p = _in_range(p * (v_scales * _limit(CODE))[None, :]).to(TYPE)
        v_even, v_odd = _halves(v_words, CODE, PTX, HARDWARE)
        even = tl.dot(p, v_even.to(TYPE), even * shrink[:, None])
        odd = tl.dot(p, v_odd.to(TYPE), odd * shrink[:, None])
        maximum = new_maximum
    even = even * (_bias(CODE, HARDWARE) / _limit(CODE))
    odd = odd * (_bias(CODE, HARDWARE) / _limit(CODE))
    if not SPLIT:
        norm = tl.where(total == 0.0, 1.0, total)[:, None]
        out_at = out + (row * num_heads + q_heads[:, None]) * DIM + 2 * pairs[None, :]
        tl.store(out_at, (even / norm).to(out.dtype.element_ty), mask=kept)
        tl.store(out_at + 1, (odd / norm).to(out.dtype.element_ty), mask=kept)
    else:
        place = (sequence * num_heads + q_heads) * splits + split
        partial_at = partial + place[:, None] * DIM + 2 * pairs[None, :]
        tl.store(partial_at, even, mask=kept)
        tl.store(partial_at + 1, odd, mask=kept)
        tl.store(partial_stats + place * 2, maximum, mask=real)
        tl.store(partial_stats + place * 2 + 1, total, mask=real)
