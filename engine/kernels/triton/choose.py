"""Choosing tokens in one kernel: a program a row, several passes over a row that stays in the second-level cache.

top_k and top_p are found as a threshold on the logits, by splitting the interval in which it lies in four at each pass,
so nothing is sorted. A row's sums are taken in an order of its own, so its token does not depend on its neighbours.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.kernels.reference_sampling import MIN_TEMPERATURE, NUM_SETTINGS

BLOCK = 4096
PASSES = 14  # of a threshold's search: its interval shrinks by 4 ** 14


@triton.jit
def _weights(base, start, width, lowest, top, temperature, BLOCK: tl.constexpr):
    """exp of the scaled logits of a block that are not below `lowest`, else 0."""
    columns = start + tl.arange(0, BLOCK)
    x = tl.load(base + columns, mask=columns < width, other=float("-inf"))
    return tl.where(x >= lowest, tl.exp((x - top) / temperature), 0.0)


@triton.jit
def _mass(x, threshold, top, temperature, COUNT: tl.constexpr):
    """A block's share of what stands at or above the threshold: how many, or their weight."""
    if COUNT:
        share = tl.where(x >= threshold, 1.0, 0.0)
    else:
        share = tl.where(x >= threshold, tl.exp((x - top) / temperature), 0.0)
    return share


@triton.jit
def _threshold(base, width, low, high, floor, wanted, top, temperature, COUNT: tl.constexpr, BLOCK: tl.constexpr,
               PASSES: tl.constexpr):  # fmt: skip
    """The largest value such that what stands at or above it, nothing below `floor` counted, reaches `wanted`.

    Between low, which reaches it, and high, which does not.
    """
    step = 0
    while (step < PASSES) & (high > low):
        quarter = (high - low) * 0.25
        first = low + quarter
        second = low + 2.0 * quarter
        third = low + 3.0 * quarter
        sum1 = tl.zeros([BLOCK], tl.float32)
        sum2 = tl.zeros([BLOCK], tl.float32)
        sum3 = tl.zeros([BLOCK], tl.float32)
        for start in range(0, width, BLOCK):
            columns = start + tl.arange(0, BLOCK)
            x = tl.load(base + columns, mask=columns < width, other=float("-inf"))
            x = tl.where(x >= floor, x, float("-inf"))
            sum1 += _mass(x, first, top, temperature, COUNT)
            sum2 += _mass(x, second, top, temperature, COUNT)
            sum3 += _mass(x, third, top, temperature, COUNT)
        has1 = tl.sum(sum1, axis=0) >= wanted
        has2 = tl.sum(sum2, axis=0) >= wanted
        has3 = tl.sum(sum3, axis=0) >= wanted
        new_low = tl.where(has3, third, tl.where(has2, second, tl.where(has1, first, low)))
        new_high = tl.where(has3, high, tl.where(has2, third, tl.where(has1, second, first)))
        # Two neighbours have nothing between them: the search is over.
        step = tl.where((new_low == low) & (new_high == high), PASSES, step + 1)
        low = new_low
        high = new_high
    return low


@triton.jit
def _choose_kernel(
    logits, rows, settings, counts, count_rows, out, width,
    COUNTED: tl.constexpr, SETTINGS: tl.constexpr, MIN_TEMPERATURE: tl.constexpr, BLOCK: tl.constexpr,
    PASSES: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0)
    base = logits + tl.load(rows + place).to(tl.int64) * width
    mine = settings + place * SETTINGS
    asked = tl.load(mine)
    temperature = tl.maximum(asked, MIN_TEMPERATURE)
    top_p = tl.load(mine + 1)
    min_p = tl.load(mine + 2)
    top_k = tl.load(mine + 3)
    uniform = tl.load(mine + 4)
    repetition = tl.load(mine + 5)
    presence = tl.load(mine + 6)
    frequency = tl.load(mine + 7)
    count_row = tl.load(count_rows + place).to(tl.int64)

    best = tl.full([BLOCK], float("-inf"), tl.float32)
    best_at = tl.zeros([BLOCK], tl.int32)
    least = tl.full([BLOCK], float("inf"), tl.float32)
    for start in range(0, width, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        inside = columns < width
        x = tl.load(base + columns, mask=inside, other=float("-inf"))
        if COUNTED:
            known = inside & (count_row >= 0)
            count = tl.load(counts + count_row * width + columns, mask=known, other=0)
            x = tl.where(count > 0, tl.where(x > 0, x / repetition, x * repetition), x)
            outputs = (count >> 1).to(tl.float32)
            x = x - frequency * outputs - tl.where(outputs > 0, presence, 0.0)
            tl.store(base + columns, x, mask=known)
        better = x > best
        best_at = tl.where(better, columns, best_at)
        best = tl.where(better, x, best)
        least = tl.minimum(least, tl.where(x > float("-inf"), x, float("inf")))
    tl.debug_barrier()  # the rows written above are read by other threads below
    top = tl.max(best, axis=0)
    first = tl.min(tl.where(best == top, best_at, width), axis=0)
    # What the largest's own weight cannot be told from is not worth a search.
    least_value = tl.min(least, axis=0)
    above = top + tl.abs(top) * 1e-6 + 1e-30  # nothing reaches it

    lowest = top + tl.log(tl.maximum(min_p, 1e-38)) * temperature
    lowest = tl.where(min_p > 0.0, lowest, float("-inf"))
    floor = float("-inf")
    if (top_k > 0.0) & (top_k < width) & (asked > 0.0):
        floor = _threshold(base, width, least_value, above, floor, top_k, top, temperature, True, BLOCK, PASSES)
    if (top_p < 1.0) & (asked > 0.0):
        total = tl.zeros([BLOCK], tl.float32)
        for start in range(0, width, BLOCK):
            total += _weights(base, start, width, floor, top, temperature, BLOCK)
        wanted = tl.sum(total, axis=0) * top_p
        # All that lies under this has less weight together than top_p leaves out.
        low = top + tl.log((1.0 - top_p) / width) * temperature
        low = tl.maximum(tl.maximum(low, floor), least_value)
        floor = tl.maximum(
            floor, _threshold(base, width, low, above, floor, wanted, top, temperature, False, BLOCK, PASSES)
        )
    lowest = tl.maximum(lowest, floor)

    chosen = first
    if asked > 0.0:
        whole = 0.0
        for start in range(0, width, BLOCK):
            whole += tl.sum(_weights(base, start, width, lowest, top, temperature, BLOCK), axis=0)
        target = tl.minimum(uniform, 0.99999994) * whole
        before = 0.0
        found_at = -1
        found_before = 0.0
        last_at = 0
        last_before = 0.0
        for start in range(0, width, BLOCK):
            weight = tl.sum(_weights(base, start, width, lowest, top, temperature, BLOCK), axis=0)
            here = (found_at < 0) & (before + weight > target)
            found_before = tl.where(here, before, found_before)
            found_at = tl.where(here, start, found_at)
            last_before = tl.where(weight > 0.0, before, last_before)
            last_at = tl.where(weight > 0.0, start, last_at)
            before += weight
        # Rounding may leave the target above every sum: then it is the last that was kept.
        found_before = tl.where(found_at < 0, last_before, found_before)
        found_at = tl.where(found_at < 0, last_at, found_at)
        weights = _weights(base, found_at, width, lowest, top, temperature, BLOCK)
        passed = found_before + tl.cumsum(weights, axis=0) > target
        lanes = tl.arange(0, BLOCK)
        last_kept = tl.max(tl.where(weights > 0.0, lanes, 0), axis=0)
        chosen = found_at + tl.minimum(tl.min(tl.where(passed & (weights > 0.0), lanes, BLOCK), axis=0), last_kept)
    tl.store(out + place, chosen)


def choose_tokens(
    logits: torch.Tensor, rows: torch.Tensor, settings: torch.Tensor, counts: torch.Tensor, count_rows: torch.Tensor
) -> torch.Tensor:
    """reference_sampling.choose_tokens.

    Shapes: logits [R, V] contiguous float32; rows [r]; settings [r, 8]; counts [C, V]; count_rows [r] -> [r] int32
    Mutates: logits of rows with counts
    """
    out = torch.empty(rows.shape[0], dtype=torch.int32, device=logits.device)
    if rows.shape[0]:
        _choose_kernel[(rows.shape[0],)](
            logits, rows, settings, counts, count_rows, out, logits.shape[1],
            counts.shape[0] > 0, NUM_SETTINGS, MIN_TEMPERATURE, BLOCK, PASSES, num_warps=16,
        )  # fmt: skip
    return out
