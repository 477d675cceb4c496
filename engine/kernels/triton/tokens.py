"""Tokens between steps: from the pool of each sequence's newest ones into a step, and from a step into the pool."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 256


@triton.jit(do_not_specialize=["count"])
def _newest_kernel(token_ids, slots, pool, out, count, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = rows < count
    known = tl.load(token_ids + rows, mask=mask, other=0)
    slot = tl.load(slots + rows, mask=mask, other=0)
    newest = tl.load(pool + slot, mask=mask & (known < 0), other=0)
    tl.store(out + rows, tl.where(known < 0, newest, known), mask=mask)


@triton.jit(do_not_specialize=["count"])
def _keep_kernel(pool, slots, tokens, count, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = rows < count
    slot = tl.load(slots + rows, mask=mask, other=0)
    tl.store(pool + slot, tl.load(tokens + rows, mask=mask, other=0), mask=mask)


def newest_tokens(token_ids: torch.Tensor, slots: torch.Tensor, pool: torch.Tensor) -> torch.Tensor:
    """Shapes and meaning as reference.newest_tokens; all int32 and contiguous."""
    out = torch.empty_like(token_ids)
    count = token_ids.shape[0]
    if count:
        _newest_kernel[(triton.cdiv(count, BLOCK),)](token_ids, slots, pool, out, count, BLOCK, num_warps=1)
    return out


def keep_tokens(pool: torch.Tensor, slots: torch.Tensor, tokens: torch.Tensor) -> None:
    """Shapes and meaning as reference.keep_tokens; all int32 and contiguous. Mutates: pool"""
    count = tokens.shape[0]
    if count:
        _keep_kernel[(triton.cdiv(count, BLOCK),)](pool, slots, tokens, count, BLOCK, num_warps=1)
