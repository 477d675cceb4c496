"""Paged attention: one kernel for prefill chunks and mixed batches, one for decode split over the context.

All query heads of a KV head share its K and V tiles (their rows are packed into one dot). Softmax is online in base 2
with the running maximum kept; a split leaves its sum and maximum for the merge. A query at position p sees keys
p - window + 1 .. p. Grids depend on shapes alone, never on lengths, so that a step can be captured and replayed.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.kernels.triton import attention_tiles as tiles

LOG2E = 1.4426950408889634
MAX_SPLITS = 32
SEARCH_STEPS = 13  # bisection over up to 4,096 sequences; a constant, so that no batch size compiles the kernel anew
PROGRAMS_WANTED = 528  # enough to fill a large GPU a few times over


@triton.jit
def _scores(q, keys, scale, SOFTCAP: tl.constexpr):
    """Scores in base 2."""
    s = tl.dot(q, keys) * scale
    if SOFTCAP > 0:
        # tanh through exp2: exact enough in float32 and available everywhere
        s = SOFTCAP * (1.0 - 2.0 / (tl.exp2(s * (2.0 * 1.4426950408889634 / SOFTCAP)) + 1.0))
    return s * 1.4426950408889634


@triton.jit
def _tile(view, table, keys, limit, page_stride, plane_stride, token_base, lanes,
          PAGE: tl.constexpr, DIM: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """Addresses of K rows of `keys`, and the mask of those that exist."""
    exists = keys < limit
    page = tl.load(table + keys // PAGE, mask=exists, other=0).to(tl.int64)
    return token_base + page * page_stride + (keys % PAGE) * DIM, exists


@triton.jit(do_not_specialize=["num_sequences"])
def _prefill_kernel(
    q, view, out, block_tables, query_starts, context_lens, sinks,
    q_token_stride, q_head_stride, out_token_stride, table_stride, page_stride, plane_stride, head_stride,
    num_sequences, scale,
    REPEAT: tl.constexpr, REPEAT_PAD: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, DIM: tl.constexpr, BLOCK_D: tl.constexpr, PAGE: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, HAS_SINKS: tl.constexpr, SEARCH_STEPS: tl.constexpr,
):  # fmt: skip
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
    if local >= count:
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
        rows_at, exists = _tile(
            view, table, keys, last_position + 1, page_stride, plane_stride, base, lanes, PAGE, DIM, BLOCK_D
        )
        k_tile = tl.load(rows_at[None, :] + lanes[:, None], mask=exists[None, :] & in_dim[:, None], other=0.0)
        s = _scores(queries, k_tile.to(queries.dtype), scale, SOFTCAP)
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
            rows_at[:, None] + plane_stride + lanes[None, :], mask=exists[:, None] & in_dim[None, :], other=0.0
        )
        acc = acc * shrink[:, None]
        acc = tl.dot(p.to(queries.dtype), v_tile.to(queries.dtype), acc)
        maximum = new_maximum
    acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    out_base = (first_row + query).to(tl.int64) * out_token_stride + q_heads * DIM
    tl.store(
        out + out_base[:, None] + lanes[None, :],
        acc.to(out.dtype.element_ty),
        mask=real[:, None] & in_dim[None, :],
    )


@triton.jit
def _decode_kernel(
    q, view, out, partial, partial_stats, block_tables, context_lens, sinks,
    q_token_stride, q_head_stride, table_stride, page_stride, plane_stride, head_stride,
    num_heads, scale,
    REPEAT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    PAGE: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, HAS_SINKS: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    context = tl.load(context_lens + sequence)
    first = 0
    if WINDOW > 0:
        first = tl.maximum(0, context - WINDOW)
    tiles = tl.cdiv(context - first // BLOCK_N * BLOCK_N, BLOCK_N)
    per_split = tl.cdiv(tiles, SPLITS)
    start = first // BLOCK_N * BLOCK_N + split * per_split * BLOCK_N
    end = tl.minimum(start + per_split * BLOCK_N, context)
    rows = tl.arange(0, BLOCK_M)
    real = rows < REPEAT
    lanes = tl.arange(0, BLOCK_D)
    in_dim = lanes < DIM
    q_heads = kv_head * REPEAT + rows
    q_at = q + sequence * q_token_stride + q_heads[:, None] * q_head_stride + lanes[None, :]
    queries = tl.load(q_at, mask=real[:, None] & in_dim[None, :], other=0.0)
    maximum = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    if HAS_SINKS:  # noqa: SIM102 - known when compiling; the next line is not
        if split == 0:
            maximum = tl.load(sinks + q_heads, mask=real, other=0.0).to(tl.float32) * 1.4426950408889634
            total += 1.0
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    table = block_tables + sequence * table_stride
    base = view + kv_head * head_stride
    for tile in range(start, end, BLOCK_N):
        keys = tile + tl.arange(0, BLOCK_N)
        rows_at, exists = _tile(view, table, keys, end, page_stride, plane_stride, base, lanes, PAGE, DIM, BLOCK_D)
        k_tile = tl.load(rows_at[None, :] + lanes[:, None], mask=exists[None, :] & in_dim[:, None], other=0.0)
        v_tile = tl.load(
            rows_at[:, None] + plane_stride + lanes[None, :], mask=exists[:, None] & in_dim[None, :], other=0.0
        )
        s = _scores(queries, k_tile.to(queries.dtype), scale, SOFTCAP)
        s = tl.where((exists & (keys >= first))[None, :], s, float("-inf"))
        new_maximum = tl.maximum(maximum, tl.max(s, axis=1))
        safe = tl.where(new_maximum == float("-inf"), 0.0, new_maximum)
        p = tl.exp2(s - safe[:, None])
        shrink = tl.exp2(maximum - safe)
        total = total * shrink + tl.sum(p, axis=1)
        acc = acc * shrink[:, None]
        acc = tl.dot(p.to(queries.dtype), v_tile.to(queries.dtype), acc)
        maximum = new_maximum
    if SPLITS == 1:
        acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
        out_at = out + (sequence * num_heads + q_heads[:, None]) * DIM + lanes[None, :]
        tl.store(out_at, acc.to(out.dtype.element_ty), mask=real[:, None] & in_dim[None, :])
    else:
        place = (sequence * num_heads + q_heads) * SPLITS + split
        tl.store(partial + place[:, None] * DIM + lanes[None, :], acc, mask=real[:, None] & in_dim[None, :])
        tl.store(partial_stats + place * 2, maximum, mask=real)
        tl.store(partial_stats + place * 2 + 1, total, mask=real)


@triton.jit
def _merge_kernel(partial, partial_stats, out, DIM: tl.constexpr, BLOCK_D: tl.constexpr, SPLITS: tl.constexpr):
    head = tl.program_id(0).to(tl.int64)
    splits = tl.arange(0, SPLITS)
    lanes = tl.arange(0, BLOCK_D)
    in_dim = lanes < DIM
    place = head * SPLITS + splits
    maximum = tl.load(partial_stats + place * 2)
    total = tl.load(partial_stats + place * 2 + 1)
    highest = tl.max(maximum, axis=0)
    weight = tl.exp2(maximum - tl.where(highest == float("-inf"), 0.0, highest))
    parts = tl.load(partial + place[:, None] * DIM + lanes[None, :], mask=in_dim[None, :], other=0.0)
    value = tl.sum(parts * weight[:, None], axis=0)
    norm = tl.sum(total * weight, axis=0)
    value = value / tl.where(norm == 0.0, 1.0, norm)
    tl.store(out + head * DIM + lanes, value.to(out.dtype.element_ty), mask=in_dim)


def paged_attention(
    q: torch.Tensor,
    view: torch.Tensor,
    block_tables: torch.Tensor,
    query_starts: torch.Tensor,
    context_lens: torch.Tensor,
    scale: float,
    window_tokens: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Shapes and meaning as reference.paged_attention; q's head dimension is contiguous."""
    num_tokens, num_heads, dim = q.shape
    out = torch.empty(num_tokens, num_heads, dim, dtype=q.dtype, device=q.device)
    if num_tokens == 0:
        return out
    if num_tokens == context_lens.shape[0]:
        _decode(q, view, out, block_tables, context_lens, scale, window_tokens, softcap, sinks)
    else:
        _prefill(q, view, out, block_tables, query_starts, context_lens, scale, window_tokens, softcap, sinks)
    return out


def _prefill(
    q: torch.Tensor,
    view: torch.Tensor,
    out: torch.Tensor,
    block_tables: torch.Tensor,
    query_starts: torch.Tensor,
    context_lens: torch.Tensor,
    scale: float,
    window_tokens: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> None:
    num_tokens, num_heads, dim = q.shape
    groups, page = view.shape[2], view.shape[3]
    repeat = num_heads // groups
    repeat_pad = triton.next_power_of_2(repeat)
    tile = tiles.prefill_tile(
        dim, view.element_size(), windowed=window_tokens is not None, shared_bytes=tiles.shared_bytes(q.device)
    )
    block_m = max(tile.block_m, repeat_pad)
    block_q = block_m // repeat_pad
    sequences = context_lens.shape[0]
    _prefill_kernel[(num_tokens // block_q + sequences, groups)](
        q, view, out, block_tables, query_starts, context_lens, q if sinks is None else sinks,
        q.stride(0), q.stride(1), out.stride(0), block_tables.stride(0),
        view.stride(0), view.stride(1), view.stride(2), sequences, scale,
        repeat, repeat_pad, block_q, block_m, tile.block_n, dim, max(16, triton.next_power_of_2(dim)), page,
        window_tokens or 0, softcap or 0.0, sinks is not None, SEARCH_STEPS,
        num_warps=tile.num_warps, num_stages=tile.num_stages,
    )  # fmt: skip


def _decode(
    q: torch.Tensor,
    view: torch.Tensor,
    out: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    scale: float,
    window_tokens: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> None:
    sequences, num_heads, dim = q.shape
    groups, page = view.shape[2], view.shape[3]
    repeat = num_heads // groups
    longest = block_tables.shape[1] * page
    splits = num_splits(sequences * groups, min(longest, window_tokens or longest))
    partial = stats = out
    if splits > 1:
        partial = torch.empty(sequences * num_heads * splits, dim, dtype=torch.float32, device=q.device)
        stats = torch.empty(sequences * num_heads * splits, 2, dtype=torch.float32, device=q.device)
    block_d = max(16, triton.next_power_of_2(dim))
    tile = tiles.decode_tile(dim, view.element_size())
    _decode_kernel[(sequences, groups, splits)](
        q, view, out, partial, stats, block_tables, context_lens, q if sinks is None else sinks,
        q.stride(0), q.stride(1), block_tables.stride(0), view.stride(0), view.stride(1), view.stride(2),
        num_heads, scale,
        repeat, max(tile.block_m, triton.next_power_of_2(repeat)), tile.block_n, dim, block_d,
        page, window_tokens or 0, softcap or 0.0, sinks is not None, splits,
        num_warps=tile.num_warps, num_stages=tile.num_stages,
    )  # fmt: skip
    if splits > 1:
        _merge_kernel[(sequences * num_heads,)](partial, stats, out, dim, block_d, splits, num_warps=2)


def num_splits(programs: int, longest_tokens: int) -> int:
    """A power of two of context parts so that the device is full, and no part is shorter than 128 tokens at the end."""
    wanted = min(MAX_SPLITS, max(1, PROGRAMS_WANTED // programs), max(1, longest_tokens // 128))
    return 1 << (wanted.bit_length() - 1)
