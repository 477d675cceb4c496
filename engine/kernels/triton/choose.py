"""Choosing tokens in one kernel: a program a row, several passes over a row that stays in the second-level cache.

top_k and top_p are found as a threshold on the logits, by splitting the interval in which it lies in four at each pass,
so nothing is sorted. Log-probabilities take one pass: each lane keeps the largest of the columns that are its own, and
of the lane that gives an alternative alone is the next looked up. A row's sums are taken in an order of its own, so its
token does not depend on its neighbours.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.kernels.reference_sampling import MIN_TEMPERATURE, ONE_OUTPUT, RECORD, SETTINGS_AT, Asked

BLOCK = 4096
PASSES = 14  # of a threshold's search: its interval shrinks by 4 ** 14
ADDED_BLOCK = 128
NUM_WARPS = 16


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
def _logprobs(base, copy, copies, told, most, count, width, BLOCK: tl.constexpr, CHUNKS: tl.constexpr):
    """The row's largest logit and where it first stands, its least that is finite, the logarithm of the sum of exp.

    Stores the `count` alternatives, and the row's copy if it `copies`.
    """
    lanes = tl.arange(0, BLOCK)
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    best_at = tl.full([BLOCK], 2147483647, tl.int32)
    share = tl.zeros([BLOCK], tl.float32)  # of the sum, beside the lane's largest
    least = tl.full([BLOCK], float("inf"), tl.float32)
    for start in range(0, width, BLOCK):
        columns = start + lanes
        inside = columns < width
        x = tl.load(base + columns, mask=inside, other=float("-inf"))
        tl.store(copy + columns, x, mask=inside & copies)
        is_number = x > float("-inf")
        last = tl.where(is_number & (best > float("-inf")), best, 0.0)  # share is 0 where there is none
        weight = tl.where(is_number, tl.exp(-tl.abs(tl.where(is_number, x, 0.0) - last)), 0.0)
        share = tl.where(x > best, share * weight + 1.0, share + weight)
        best_at = tl.where(inside & ((x > best) | (best_at == 2147483647)), columns, best_at)
        best = tl.maximum(best, x)
        least = tl.minimum(least, tl.where(x > float("-inf"), x, float("inf")))
    tl.debug_barrier()  # the copy is read by other threads
    top = tl.max(best, axis=0)
    first = tl.min(tl.where(best == top, best_at, 2147483647), axis=0)
    log_sum = tl.log(tl.sum(tl.where(best > float("-inf"), share * tl.exp(best - top), 0.0), axis=0))
    own = tl.arange(0, CHUNKS)  # the columns of one lane
    for at in range(count):
        value = tl.max(best, axis=0)
        token = tl.min(tl.where(best == value, best_at, 2147483647), axis=0)
        tl.store(told + 1 + at, (value - top - log_sum).to(tl.int32, bitcast=True))
        tl.store(told + 1 + most + at, token)
        lane = token % BLOCK
        columns = lane + own * BLOCK
        x = tl.load(base + columns, mask=columns < width, other=float("-inf"))
        after = (columns < width) & ((x < value) | ((x == value) & (columns > token)))
        following = tl.max(tl.where(after, x, float("-inf")), axis=0)
        place = tl.min(tl.where(after & (x == following), columns, 2147483647), axis=0)
        best = tl.where(lanes == lane, following, best)
        best_at = tl.where(lanes == lane, place, best_at)
    return top, first, tl.min(least, axis=0), log_sum


@triton.jit
def _changed(
    base, counts, count_row, mask, masked, changed, repetition, presence, frequency, width, BLOCK: tl.constexpr
):  # fmt: skip
    """Leave the row with penalties and without what its mask forbids; its largest, that one's place, its least."""
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    best_at = tl.zeros([BLOCK], tl.int32)
    least = tl.full([BLOCK], float("inf"), tl.float32)
    for start in range(0, width, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        inside = columns < width
        x = tl.load(base + columns, mask=inside, other=float("-inf"))
        count = tl.load(counts + count_row * width + columns, mask=inside & (count_row >= 0), other=0)
        x = tl.where(count > 0, tl.where(x > 0, x / repetition, x * repetition), x)
        outputs = (count >> 1).to(tl.float32)
        x = x - frequency * outputs - tl.where(outputs > 0, presence, 0.0)
        word = tl.load(mask + (columns >> 5), mask=inside & masked, other=-1)
        x = tl.where(((word >> (columns & 31)) & 1) == 0, float("-inf"), x)
        tl.store(base + columns, x, mask=inside & changed)
        better = x > best
        best_at = tl.where(better, columns, best_at)
        best = tl.where(better, x, best)
        least = tl.minimum(least, tl.where(x > float("-inf"), x, float("inf")))
    tl.debug_barrier()  # the row written above is read by other threads below
    top = tl.max(best, axis=0)
    return top, tl.min(tl.where(best == top, best_at, width), axis=0), tl.min(least, axis=0)


@triton.jit
def _add(base, ids, bits, count, BLOCK: tl.constexpr):
    """A number to each of some logits, no two of them the same."""
    tl.debug_barrier()
    for start in range(0, count, BLOCK):
        at = start + tl.arange(0, BLOCK)
        token = tl.load(ids + at, mask=at < count, other=0)
        number = tl.load(bits + at, mask=at < count, other=0).to(tl.float32, bitcast=True)
        x = tl.load(base + token, mask=at < count, other=0.0)
        tl.store(base + token, x + number, mask=at < count)
    tl.debug_barrier()


@triton.jit
def _draw(base, width, top, least, temperature, top_p, min_p, top_k, uniform, BLOCK: tl.constexpr,
          PASSES: tl.constexpr):  # fmt: skip
    """The token where the sum of the weights that filters leave, in vocabulary order, passes the uniform number."""
    above = top + tl.abs(top) * 1e-6 + 1e-30  # nothing reaches it
    lowest = top + tl.log(tl.maximum(min_p, 1e-38)) * temperature
    lowest = tl.where(min_p > 0.0, lowest, float("-inf"))
    floor = float("-inf")
    if (top_k > 0.0) & (top_k < width):
        floor = _threshold(base, width, least, above, floor, top_k, top, temperature, True, BLOCK, PASSES)
    if top_p < 1.0:
        total = tl.zeros([BLOCK], tl.float32)
        for start in range(0, width, BLOCK):
            total += _weights(base, start, width, floor, top, temperature, BLOCK)
        wanted = tl.sum(total, axis=0) * top_p
        # All that lies under this has less weight together than top_p leaves out.
        low = top + tl.log((1.0 - top_p) / width) * temperature
        low = tl.maximum(tl.maximum(low, floor), least)
        floor = tl.maximum(
            floor, _threshold(base, width, low, above, floor, wanted, top, temperature, False, BLOCK, PASSES)
        )
    lowest = tl.maximum(lowest, floor)

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
    return found_at + tl.minimum(tl.min(tl.where(passed & (weights > 0.0), lanes, BLOCK), axis=0), last_kept)


@triton.jit
def _row(
    base, spare, counts, mine, told, most, added, lists, width,
    SETTINGS_AT: tl.constexpr, MIN_TEMPERATURE: tl.constexpr, ONE_OUTPUT: tl.constexpr, BLOCK: tl.constexpr,
    ADDED_BLOCK: tl.constexpr, CHUNKS: tl.constexpr, PASSES: tl.constexpr,
):  # fmt: skip
    """One row's token. Its record's words as reference_sampling names them."""
    count_row = tl.load(mine + 1).to(tl.int64)
    alternatives = tl.load(mine + 2)
    added_at = tl.load(mine + 3)
    num_added = tl.load(mine + 4)
    mask_row = tl.load(mine + 5)
    spare_row = tl.load(mine + 6)
    setting = mine + SETTINGS_AT
    asked = tl.load(setting).to(tl.float32, bitcast=True)
    top_p = tl.load(setting + 1).to(tl.float32, bitcast=True)
    min_p = tl.load(setting + 2).to(tl.float32, bitcast=True)
    top_k = tl.load(setting + 3).to(tl.float32, bitcast=True)
    uniform = tl.load(setting + 4).to(tl.float32, bitcast=True)
    repetition = tl.load(setting + 5).to(tl.float32, bitcast=True)
    presence = tl.load(setting + 6).to(tl.float32, bitcast=True)
    frequency = tl.load(setting + 7).to(tl.float32, bitcast=True)

    own = base
    if spare_row >= 0:
        own = spare + spare_row.to(tl.int64) * width
    top = 0.0
    first = 0
    least = 0.0
    raw_top = 0.0
    log_sum = 0.0
    if alternatives >= 0:
        top, first, least, log_sum = _logprobs(
            base, own, spare_row >= 0, told, most, alternatives, width, BLOCK, CHUNKS
        )
        raw_top = top
    if num_added > 0:
        _add(own, lists + added + added_at, lists + 2 * added + added_at, num_added, ADDED_BLOCK)
    changed = (count_row >= 0) | (num_added > 0) | (mask_row >= 0)
    if changed | (alternatives < 0):
        words_a_mask = (width + 31) // 32
        mask = lists + 3 * added + mask_row.to(tl.int64) * words_a_mask
        top, first, least = _changed(
            own, counts, count_row, mask, mask_row >= 0, changed, repetition, presence, frequency, width, BLOCK
        )
    chosen = first
    if asked > 0.0:
        temperature = tl.maximum(asked, MIN_TEMPERATURE)
        chosen = _draw(own, width, top, least, temperature, top_p, min_p, top_k, uniform, BLOCK, PASSES)
    if alternatives >= 0:
        logprob = tl.load(base + chosen) - raw_top - log_sum
        tl.store(told, logprob.to(tl.int32, bitcast=True))
    if count_row >= 0:
        place = counts + count_row * width + chosen
        tl.store(place, tl.load(place) + ONE_OUTPUT)
    return chosen


@triton.jit(do_not_specialize=["most", "rows", "added"])
def _draw_kernel(
    logits, picked, counts, words, spare, told, width, rows, added, most,
    RECORD: tl.constexpr, SETTINGS_AT: tl.constexpr, MIN_TEMPERATURE: tl.constexpr, ONE_OUTPUT: tl.constexpr,
    BLOCK: tl.constexpr, ADDED_BLOCK: tl.constexpr, CHUNKS: tl.constexpr, PASSES: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0)
    mine = words + place * RECORD
    row = tl.load(mine).to(tl.int64)
    if tl.load(picked + row) >= 0:
        chosen = _row(
            logits + row * width, spare, counts, mine, told + place * (1 + 2 * most), most, added,
            words + rows * RECORD, width,
            SETTINGS_AT, MIN_TEMPERATURE, ONE_OUTPUT, BLOCK, ADDED_BLOCK, CHUNKS, PASSES,
        )  # fmt: skip
        tl.store(picked + row, chosen)


def draw_tokens(logits: torch.Tensor, picked: torch.Tensor, counts: torch.Tensor, asked: Asked) -> torch.Tensor | None:
    """reference_sampling.draw_tokens; logits and picked contiguous. What is told of a row not finite is undefined."""
    values = logits if logits.dtype == torch.float32 else logits.float()
    width = values.shape[1]
    spare = torch.empty(asked.spares, width, dtype=torch.float32, device=logits.device)
    told = torch.empty(asked.rows, 1 + 2 * max(0, asked.most), dtype=torch.int32, device=logits.device)
    if asked.rows:
        chunks = triton.next_power_of_2(triton.cdiv(width, BLOCK))
        _draw_kernel[(asked.rows,)](
            values, picked, counts, asked.words, spare, told, width, asked.rows, asked.added, asked.most,
            RECORD, SETTINGS_AT, MIN_TEMPERATURE, ONE_OUTPUT, BLOCK, ADDED_BLOCK, chunks, PASSES, num_warps=NUM_WARPS,
        )  # fmt: skip
    return told if asked.most >= 0 else None
