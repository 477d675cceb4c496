"""The largest logit of each row, in two short passes that fill the device."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.kernels.triton.chained import chains, launch, let_next_start, wait_for_last

BLOCK = 4096


@triton.jit
def _part_kernel(
    logits, best, place, lowest, width, PARTS: tl.constexpr, BLOCK: tl.constexpr, CHAINED: tl.constexpr
):  # fmt: skip
    if CHAINED:
        let_next_start()
        wait_for_last()
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    columns = part * BLOCK + tl.arange(0, BLOCK)
    mask = columns < width
    values = tl.load(logits + row * width + columns, mask=mask, other=float("-inf")).to(tl.float32)
    # NaN compares false with everything: name it before it can hide.
    bad = tl.max(((values != values) & mask).to(tl.int32), axis=0)
    high, at = tl.max(values, axis=0, return_indices=True)
    low = tl.min(tl.where(mask, values, float("inf")), axis=0)
    tl.store(best + row * PARTS + part, high)
    tl.store(place + row * PARTS + part, part * BLOCK + at)
    tl.store(lowest + row * PARTS + part, tl.where(bad > 0, float("-inf"), low))


@triton.jit
def _whole_kernel(best, place, lowest, out, parts, PARTS: tl.constexpr, CHAINED: tl.constexpr):
    if CHAINED:
        let_next_start()
        wait_for_last()
    row = tl.program_id(0)
    lanes = tl.arange(0, PARTS)
    mask = lanes < parts
    highs = tl.load(best + row * parts + lanes, mask=mask, other=float("-inf"))
    low = tl.min(tl.load(lowest + row * parts + lanes, mask=mask, other=float("inf")), axis=0)
    high, at = tl.max(highs, axis=0, return_indices=True)
    token = tl.load(place + row * parts + at)
    finite = (high < float("inf")) & (low > float("-inf"))
    tl.store(out + row, tl.where(finite, token, -1))


def pick_greedy(logits: torch.Tensor) -> torch.Tensor:
    """The first largest of each row, -1 where a row has a number that is not finite.

    Shapes: logits [R, vocab] contiguous -> [R] int32
    """
    rows, width = logits.shape
    parts = triton.cdiv(width, BLOCK)
    best = torch.empty(rows, parts, dtype=torch.float32, device=logits.device)
    lowest = torch.empty_like(best)
    place = torch.empty(rows, parts, dtype=torch.int32, device=logits.device)
    out = torch.empty(rows, dtype=torch.int32, device=logits.device)
    if rows:
        chained, options = chains(logits.device), launch(logits.device)
        _part_kernel[(rows, parts)](logits, best, place, lowest, width, parts, BLOCK, chained, num_warps=8, **options)
        _whole_kernel[(rows,)](
            best, place, lowest, out, parts, triton.next_power_of_2(parts), chained, num_warps=1, **options
        )
    return out
