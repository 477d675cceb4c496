"""Paged attention of prompts' chunks: a program takes some queries of one KV head and all keys that they see.

All query heads of a KV head share its K and V tiles (their rows are packed into one dot). Softmax is online in base 2
with the running maximum kept. Sequences with one query or a few are left to attention_decode and attention_few.
"""

from __future__ import annotations

import triton
import triton.language as tl

from engine.kernels.triton.cached_bytes import _bias, _in_range, _limit, _numbers, _scales_at

# What differs from step to step, and would else be another kernel to compile.
READ_ONE_BY_ONE = ["block_tables", "query_starts", "context_lens"]
SEARCH_STEPS = 13  # bisection over up to 4,096 sequences; a constant, so that no batch size compiles the kernel anew


@triton.jit
def _base2(scores, SOFTCAP: tl.constexpr):
    """Scores, bounded if they are to be, in base 2."""
    if SOFTCAP > 0:
        # tanh through exp2: exact enough in float32 and available everywhere
        scores = SOFTCAP * (1.0 - 2.0 / (tl.exp2(scores * (2.0 * 1.4426950408889634 / SOFTCAP)) + 1.0))
    return scores * 1.4426950408889634


@triton.jit
def _in_half(queries, TYPE: tl.constexpr):
    """Queries over their largest number, and that: what a float16 product with a cache of bytes takes."""
    wide = queries.to(tl.float32)
    largest = tl.maximum(tl.max(tl.abs(wide), axis=1), 1e-20)
    return (wide / largest[:, None]).to(TYPE), largest


@triton.jit(do_not_specialize=["num_sequences", "table_stride"], do_not_specialize_on_alignment=READ_ONE_BY_ONE)
def _prefill_kernel(
    q, view, out, block_tables, query_starts, context_lens, sinks,
    q_token_stride, q_head_stride, out_token_stride, table_stride, page_stride, plane_stride, head_stride,
    num_sequences, scale,
    FEW: tl.constexpr, REPEAT: tl.constexpr, REPEAT_PAD: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, DIM: tl.constexpr, BLOCK_D: tl.constexpr, PAGE: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, HAS_SINKS: tl.constexpr, SEARCH_STEPS: tl.constexpr,
    CODE: tl.constexpr, TYPE: tl.constexpr, HARDWARE: tl.constexpr,
):  # fmt: skip
    """FEW: so many queries of a sequence are left to others.

    CODE: of the cache, see engine.kernels.triton.cached_bytes. TYPE: of the numbers multiplied
    """
    block = tl.program_id(0)
    kv_head = tl.program_id(1)
    # Sequence s owns blocks query_starts[s] // BLOCK_Q + s and following: find it by bisection.
    low = 0
    high = num_sequences - 1
    for _ in range(SEARCH_STEPS):
        middle = (low + high + 1) // 2
        if tl.load(query_starts + middle) // BLOCK_Q + middle <= block:
            low = middle
        else:
            high = middle - 1
    sequence = low
    first_row = tl.load(query_starts + sequence)
    count = tl.load(query_starts + sequence + 1) - first_row
    local = (block - (first_row // BLOCK_Q + sequence)) * BLOCK_Q
    if (local >= count) | (count <= FEW):
        return
    context = tl.load(context_lens + sequence)
    rows = tl.arange(0, BLOCK_M)
    query = local + rows // REPEAT_PAD
    head = rows % REPEAT_PAD
    real = (query < count) & (head < REPEAT)
    lanes = tl.arange(0, BLOCK_D)
    in_dim = lanes < DIM
    q_heads = kv_head * REPEAT + head
    q_base = (first_row + query).to(tl.int64) * q_token_stride + q_heads * q_head_stride
    queries = tl.load(q + q_base[:, None] + lanes[None, :], mask=real[:, None] & in_dim[None, :], other=0.0)
    if CODE != 0:
        queries, largest = _in_half(queries, TYPE)
        factor = largest * (scale * _bias(CODE, HARDWARE))
    position = context - count + query
    maximum = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    if HAS_SINKS:
        maximum = tl.load(sinks + q_heads, mask=head < REPEAT, other=0.0).to(tl.float32) * 1.4426950408889634
        total += 1.0
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    first_position = context - count + local
    last_position = tl.minimum(first_position + BLOCK_Q, context) - 1
    start = 0
    window_end = 0  # keys before it are outside the window of some query
    if WINDOW > 0:
        start = tl.maximum(0, first_position - WINDOW + 1) // BLOCK_N * BLOCK_N
        window_end = last_position - WINDOW + 1
    table = block_tables + sequence.to(tl.int64) * table_stride
    base = view + kv_head * head_stride
    # Tiles wholly below the diagonal and inside every window need no mask.
    plain_end = (first_position + 1) // BLOCK_N * BLOCK_N
    for tile in range(start, last_position + 1, BLOCK_N):
        keys = tile + tl.arange(0, BLOCK_N)
        exists = keys <= last_position
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
            s = tl.where(seen, s, float("-inf"))
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
    acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    if CODE != 0:
        acc = acc * (_bias(CODE, HARDWARE) / _limit(CODE))
    out_base = (first_row + query).to(tl.int64) * out_token_stride + q_heads * DIM
    tl.store(
        out + out_base[:, None] + lanes[None, :],
        acc.to(out.dtype.element_ty),
        mask=real[:, None] & in_dim[None, :],
    )
