"""Paged attention: sequences with one query or a few by kernels split over the context, the others by one for chunks.

Which kernel a sequence takes depends on its own number of queries alone. Grids depend on shapes alone, never on
lengths, so that a step can be captured and replayed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from engine.kernels.triton import attention_tiles as tiles
from engine.kernels.triton.attention_bytes import _decode_bytes_kernel
from engine.kernels.triton.attention_decode import _decode_kernel, _merge_kernel
from engine.kernels.triton.attention_few import _few_kernel, _merge_few_kernel, few_queries
from engine.kernels.triton.attention_prefill import SEARCH_STEPS, _prefill_kernel
from engine.kernels.triton.cached_bytes import PLAIN, code_of
from engine.kernels.triton.chained import chains, launch
from engine.kernels.triton.device import converts_fp8, speaks_ptx

MAX_SPLITS = 32
PROGRAMS_WANTED = 528  # enough to fill a large GPU a few times over
_TYPES = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}


@dataclass(frozen=True, slots=True)
class _Work:
    """What both kernels are given."""

    q: torch.Tensor
    view: torch.Tensor
    out: torch.Tensor
    block_tables: torch.Tensor
    query_starts: torch.Tensor
    context_lens: torch.Tensor
    scale: float
    window_tokens: int | None
    softcap: float | None
    sinks: torch.Tensor | None

    @property
    def repeat(self) -> int:
        """Heads that share a KV head."""
        return self.q.shape[1] // self.view.shape[2]

    @property
    def few(self) -> int:
        """The most queries of a sequence that is not a chunk."""
        return few_queries(triton.next_power_of_2(self.repeat))

    @property
    def multiplied(self) -> tl.dtype:
        """The type of the numbers multiplied: bytes become float16 ones, which hold them exactly."""
        if code_of(self.view) == PLAIN or self.q.dtype == torch.float32:
            return _TYPES[self.q.dtype]
        return tl.float16


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
    """Shapes and meaning as reference.paged_attention; q's head dimension is contiguous, and no sequence has no query.

    Queries of a cache of bytes are rounded to float16 unless they are float32.
    """
    num_tokens, num_heads, dim = q.shape
    out = torch.empty(num_tokens, num_heads, dim, dtype=q.dtype, device=q.device)
    if num_tokens == 0:
        return out
    work = _Work(q, view, out, block_tables, query_starts, context_lens, scale, window_tokens, softcap, sinks)
    sequences = context_lens.shape[0]
    most = num_tokens - sequences + 1  # queries that a sequence can have
    if most > work.few:
        _prefill(work)
    if most > 1 and work.few > 1 and (sequences > 1 or most <= work.few):
        _few(work)
    if sequences > 1 or num_tokens == 1:
        _decode(work, mixed=num_tokens > sequences)
    return out


def _prefill(work: _Work) -> None:
    """The sequences with more than a few queries."""
    q, view, out = work.q, work.view, work.out
    num_tokens, _, dim = q.shape
    groups, page = view.shape[2], view.shape[3]
    repeat = work.repeat
    repeat_pad = triton.next_power_of_2(repeat)
    tile = tiles.prefill_tile(
        dim,
        view.element_size(),
        windowed=work.window_tokens is not None,
        shared_bytes=tiles.shared_bytes(q.device),
    )
    block_m = max(tile.block_m, repeat_pad)
    block_q = block_m // repeat_pad
    sequences = work.context_lens.shape[0]
    _prefill_kernel[(num_tokens // block_q + sequences, groups)](
        q, view, out, work.block_tables, work.query_starts, work.context_lens, q if work.sinks is None else work.sinks,
        q.stride(0), q.stride(1), out.stride(0), work.block_tables.stride(0),
        view.stride(0), view.stride(1), view.stride(2), sequences, work.scale,
        work.few, repeat, repeat_pad, block_q, block_m, tile.block_n, dim, max(16, triton.next_power_of_2(dim)), page,
        work.window_tokens or 0, work.softcap or 0.0, work.sinks is not None, SEARCH_STEPS,
        code_of(view), work.multiplied, converts_fp8(q.device),
        num_warps=tile.num_warps, num_stages=tile.num_stages,
    )  # fmt: skip


def _few(work: _Work) -> None:
    """The sequences with more than one query that are no chunks."""
    q, view, out = work.q, work.view, work.out
    num_heads, dim = q.shape[1:]
    sequences, groups, page = work.context_lens.shape[0], view.shape[2], view.shape[3]
    repeat_pad = triton.next_power_of_2(work.repeat)
    few = work.few
    longest = work.block_tables.shape[1] * page
    splits = num_splits(sequences * groups, min(longest, (work.window_tokens or longest) + few))
    partial = stats = out
    places = sequences * few * num_heads
    if splits > 1:
        partial = torch.empty(places * splits, dim, dtype=torch.float32, device=q.device)
        stats = torch.empty(places * splits, 2, dtype=torch.float32, device=q.device)
    block_d = max(16, triton.next_power_of_2(dim))
    tile = tiles.few_tile(few * repeat_pad, dim, view.element_size())
    _few_kernel[(sequences, groups, splits)](
        q, view, out, partial, stats, work.block_tables, work.query_starts, work.context_lens,
        q if work.sinks is None else work.sinks, q.stride(0), q.stride(1), work.block_tables.stride(0),
        view.stride(0), view.stride(1), view.stride(2), num_heads, work.scale, splits,
        work.repeat, repeat_pad, few, tile.block_m, tile.block_n, dim, block_d, page, work.window_tokens or 0,
        work.softcap or 0.0, work.sinks is not None, splits > 1, code_of(view), work.multiplied,
        converts_fp8(q.device), num_warps=tile.num_warps, num_stages=tile.num_stages,
    )  # fmt: skip
    if splits > 1:
        _merge_few_kernel[(places,)](
            partial, stats, out, work.query_starts, num_heads, splits, few, dim, block_d, MAX_SPLITS, num_warps=2
        )


def _decode(work: _Work, *, mixed: bool) -> None:
    """The sequences with one query. mixed: others are among them"""
    q, view, out = work.q, work.view, work.out
    num_heads, dim = q.shape[1:]
    sequences = work.context_lens.shape[0]
    groups, page = view.shape[2], view.shape[3]
    repeat = work.repeat
    longest = work.block_tables.shape[1] * page
    splits = num_splits(sequences * groups, min(longest, work.window_tokens or longest))
    partial = stats = out
    if splits > 1:
        partial = torch.empty(sequences * num_heads * splits, dim, dtype=torch.float32, device=q.device)
        stats = torch.empty(sequences * num_heads * splits, 2, dtype=torch.float32, device=q.device)
    block_d = max(16, triton.next_power_of_2(dim))
    code = code_of(view)
    tile = tiles.decode_tile(dim, view.element_size())
    inputs = (q, view, out, partial, stats, work.block_tables, work.query_starts, work.context_lens,
              q if work.sinks is None else work.sinks, q.stride(0), q.stride(1), work.block_tables.stride(0),
              view.stride(0), view.stride(1), view.stride(2), num_heads, work.scale, splits)  # fmt: skip
    forms = (page, work.window_tokens or 0, work.softcap or 0.0, work.sinks is not None, splits > 1, mixed)
    block_m = max(tile.block_m, triton.next_power_of_2(repeat))
    grid = (sequences, groups, splits)
    chained = chains(q.device)
    options = {"num_warps": tile.num_warps, "num_stages": tile.num_stages, **launch(q.device)}
    if code == PLAIN:
        _decode_kernel[grid](*inputs, repeat, block_m, tile.block_n, dim, block_d, *forms, chained, **options)
    else:
        pairs = max(16, block_d // 2)
        kinds = (code, work.multiplied, speaks_ptx(q.device), converts_fp8(q.device), chained)
        _decode_bytes_kernel[grid](*inputs, repeat, block_m, tile.block_n, dim, pairs, *forms, *kinds, **options)
    if splits > 1:
        grid = (sequences * num_heads, 1, 1)
        _merge_kernel[grid](
            partial, stats, out, work.query_starts, num_heads, splits, dim, block_d, MAX_SPLITS, mixed, chained,
            num_warps=2, **launch(q.device),
        )  # fmt: skip


def num_splits(programs: int, longest_tokens: int, wanted: int = PROGRAMS_WANTED) -> int:
    """A power of two of context parts so that the device is full, and no part is shorter than 128 tokens at the end.

    wanted: programs that fill the device
    """
    parts = min(MAX_SPLITS, max(1, wanted // programs), max(1, longest_tokens // 128))
    return 1 << (parts.bit_length() - 1)
