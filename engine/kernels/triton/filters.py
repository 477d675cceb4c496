"""Which of a row's logits top_k, top_p and min_p leave, and the token that a number draws of them.

top_k and top_p are found as a threshold on the logits, by splitting the interval in which it lies in four at each turn,
so nothing is sorted. What each lane's largest logit say by themselves bounds it from below; what reaches that bound is
listed, each lane its own, so that a turn reads a few logits instead of the row. If a lane has more of them than a list
holds, some turns read the row, and what still is between the bounds is listed then.
"""

from __future__ import annotations

import triton
import triton.language as tl

LISTED = tl.constexpr(16)  # of a lane
GROUP = tl.constexpr(8)  # blocks whose weights are added up before their sum is kept
LANE_TURNS = tl.constexpr(8)
ROW_TURNS = tl.constexpr(4)
WEIGHTLESS = tl.constexpr(110.0)  # exp of less than -104 is 0


@triton.jit
def _weights(base, start, width, lowest, top, temperature, BLOCK: tl.constexpr):
    """exp of the scaled logits of a block that are not below `lowest`, else 0."""
    columns = start + tl.arange(0, BLOCK)
    x = tl.load(base + columns, mask=columns < width, other=float("-inf"))
    return tl.where(x >= lowest, tl.exp((x - top) / temperature), 0.0)


@triton.jit
def _mass(x, threshold, top, temperature, COUNT: tl.constexpr):
    """Each one's share of what stands at or above the threshold: how many, or their weight."""
    if COUNT:
        share = tl.where(x >= threshold, 1.0, 0.0)
    else:
        share = tl.where(x >= threshold, tl.exp((x - top) / temperature), 0.0)
    return share


@triton.jit
def _narrowed(low, high, first, second, third, has1, has2, has3):
    new_low = tl.where(has3, third, tl.where(has2, second, tl.where(has1, first, low)))
    new_high = tl.where(has3, high, tl.where(has2, third, tl.where(has1, second, first)))
    return new_low, new_high


@triton.jit
def _bound(best, share, low, high, wanted):
    """A value such that the lanes whose largest reaches it have so much together, as high as a few turns find; or low.

    Before the search: nothing is as high as `high`.
    """
    for _ in range(LANE_TURNS):
        quarter = (high - low) * 0.25
        first = low + quarter
        second = low + 2.0 * quarter
        third = low + 3.0 * quarter
        has1 = tl.sum(tl.where(best >= first, share, 0.0), axis=0) >= wanted
        has2 = tl.sum(tl.where(best >= second, share, 0.0), axis=0) >= wanted
        has3 = tl.sum(tl.where(best >= third, share, 0.0), axis=0) >= wanted
        low, high = _narrowed(low, high, first, second, third, has1, has2, has3)
    return low


@triton.jit
def _threshold(
    listed, held, longest, low, high, over, wanted, top, temperature,
    COUNT: tl.constexpr, LANES: tl.constexpr, TURNS: tl.constexpr,
):  # fmt: skip
    """The largest value such that what stands at or above it reaches `wanted`.

    Between low, which reaches it, and high, which does not. over: the share of what is not listed and reaches high
    """
    lanes = tl.arange(0, LANES)
    turn = 0
    while (turn < TURNS) & (high > low):
        quarter = (high - low) * 0.25
        first = low + quarter
        second = low + 2.0 * quarter
        third = low + 3.0 * quarter
        sum1 = tl.zeros([LANES], tl.float32)
        sum2 = tl.zeros([LANES], tl.float32)
        sum3 = tl.zeros([LANES], tl.float32)
        for at in range(longest):
            x = tl.load(listed + at * LANES + lanes, mask=at < held, other=float("-inf"))
            sum1 += _mass(x, first, top, temperature, COUNT)
            sum2 += _mass(x, second, top, temperature, COUNT)
            sum3 += _mass(x, third, top, temperature, COUNT)
        has1 = over + tl.sum(sum1, axis=0) >= wanted
        has2 = over + tl.sum(sum2, axis=0) >= wanted
        has3 = over + tl.sum(sum3, axis=0) >= wanted
        new_low, new_high = _narrowed(low, high, first, second, third, has1, has2, has3)
        # Two neighbours have nothing between them: the search is over.
        turn = tl.where((new_low == low) & (new_high == high), TURNS, turn + 1)
        low = new_low
        high = new_high
    return low


@triton.jit
def _narrow(base, width, low, high, wanted, top, temperature, counts, BLOCK: tl.constexpr):
    """Some turns of such a search over the row: low, high, and the share of what reaches high."""
    over = 0.0
    for _ in range(ROW_TURNS):
        quarter = (high - low) * 0.25
        first = low + quarter
        second = low + 2.0 * quarter
        third = low + 3.0 * quarter
        sum1 = tl.zeros([BLOCK], tl.float32)
        sum2 = tl.zeros([BLOCK], tl.float32)
        sum3 = tl.zeros([BLOCK], tl.float32)
        for start in tl.range(0, width, BLOCK, loop_unroll_factor=2):
            columns = start + tl.arange(0, BLOCK)
            x = tl.load(base + columns, mask=columns < width, other=float("-inf"))
            share = tl.where(counts, 1.0, tl.exp((x - top) / temperature))
            sum1 += tl.where(x >= first, share, 0.0)
            sum2 += tl.where(x >= second, share, 0.0)
            sum3 += tl.where(x >= third, share, 0.0)
        over1 = tl.sum(sum1, axis=0)
        over2 = tl.sum(sum2, axis=0)
        over3 = tl.sum(sum3, axis=0)
        has1 = over1 >= wanted
        has2 = over2 >= wanted
        has3 = over3 >= wanted
        over = tl.where(has3, over, tl.where(has2, over3, tl.where(has1, over2, over1)))
        low, high = _narrowed(low, high, first, second, third, has1, has2, has3)
    return low, high, over


@triton.jit
def _survey(base, width, top, temperature, BLOCK: tl.constexpr):
    """Each lane's largest logit, its least that is finite, its weight."""
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    least = tl.full([BLOCK], float("inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for start in tl.range(0, width, BLOCK, loop_unroll_factor=4):
        columns = start + tl.arange(0, BLOCK)
        x = tl.load(base + columns, mask=columns < width, other=float("-inf"))
        total += tl.exp((x - top) / temperature)
        best = tl.maximum(best, x)
        least = tl.minimum(least, tl.where(x > float("-inf"), x, float("inf")))
    return best, tl.min(least, axis=0), total


@triton.jit
def _take(base, start, width, LANES: tl.constexpr):
    columns = start + tl.arange(0, LANES)
    return tl.load(base + columns, mask=columns < width, other=float("-inf"))


@triton.jit
def _put(listed, held, first, second, low, high, LANES: tl.constexpr):
    """Put two logits of each lane behind those that it holds, if they lie between; how many it would hold with room."""
    places = listed + tl.arange(0, LANES)
    between = (first >= low) & (first < high)
    tl.store(places + held * LANES, first, mask=between & (held < LISTED))
    held += between.to(tl.int32)
    between = (second >= low) & (second < high)
    tl.store(places + held * LANES, second, mask=between & (held < LISTED))
    return held + between.to(tl.int32)


@triton.jit
def _list(base, listed, width, low, high, LANES: tl.constexpr):
    """List what lies between; how many each lane would hold with room."""
    held = tl.zeros([LANES], tl.int32)
    tl.debug_barrier()  # a list of before may still be read
    for start in range(0, width, 8 * LANES):  # as many loads at once: none can pass the store before it
        x0 = _take(base, start, width, LANES)
        x1 = _take(base, start + LANES, width, LANES)
        x2 = _take(base, start + 2 * LANES, width, LANES)
        x3 = _take(base, start + 3 * LANES, width, LANES)
        x4 = _take(base, start + 4 * LANES, width, LANES)
        x5 = _take(base, start + 5 * LANES, width, LANES)
        x6 = _take(base, start + 6 * LANES, width, LANES)
        x7 = _take(base, start + 7 * LANES, width, LANES)
        held = _put(listed, held, x0, x1, low, high, LANES)
        held = _put(listed, held, x2, x3, low, high, LANES)
        held = _put(listed, held, x4, x5, low, high, LANES)
        held = _put(listed, held, x6, x7, low, high, LANES)
    tl.debug_barrier()
    return held


@triton.jit
def _floor(base, nothing, scratch, width, top, temperature, top_p, top_k, BLOCK: tl.constexpr, TURNS: tl.constexpr):
    """The least logit that top_k and top_p leave.

    nothing: 0, which the compiler does not know. That, and lanes of another number, keep it from loading columns by
    four: what lanes list can be stored one by one alone, and would change its layout at every block.
    """
    LANES: tl.constexpr = BLOCK // 2
    lanes = tl.arange(0, LANES)
    above = top + tl.abs(top) * 1e-6 + 1e-30  # nothing reaches it
    counts = (top_k > 0.0) & (top_k < width)
    best, least, total = _survey(base, width, top, temperature, BLOCK)
    # What lies lower has no weight in float32. Where a model masks by -1e30 the search would not get near a threshold.
    least = tl.maximum(least, top - WEIGHTLESS * temperature)
    # All that lies under this has less weight together than top_p leaves out.
    under = tl.maximum(least, top + tl.log(tl.maximum(1.0 - top_p, 1e-30) / width) * temperature)
    wanted = tl.where(counts, top_k, tl.maximum(tl.sum(total, axis=0) * top_p, 1e-30))  # the largest stays always
    share = tl.where(counts, 1.0, tl.exp((best - top) / temperature))
    low = _bound(best, share, tl.where(counts, least, under), above, wanted)
    high = above
    over = 0.0
    row = base + nothing
    listed = scratch + nothing
    held = _list(row, listed, width, low, high, LANES)
    longest = tl.max(held, axis=0)
    if longest > LISTED:
        low, high, over = _narrow(base, width, low, high, wanted, top, temperature, counts, BLOCK)
        held = _list(row, listed, width, low, high, LANES)
        longest = tl.max(held, axis=0)
    whole = (width - lanes + LANES - 1) // LANES  # of each lane, if the row is its list
    if longest > LISTED:  # very many logits are the same
        listed = row
        held = whole
        longest = (width + LANES - 1) // LANES
        over = 0.0
    floor = float("-inf")
    if counts:
        floor = _threshold(listed, held, longest, low, high, over, top_k, top, temperature, True, LANES, TURNS)
    if top_p < 1.0:
        if counts:
            if high < above:  # what was listed is the border alone
                listed = row
                held = whole
                longest = (width + LANES - 1) // LANES
                high = above
                over = 0.0
            kept = tl.zeros([LANES], tl.float32)
            for at in range(longest):
                x = tl.load(listed + at * LANES + lanes, mask=at < held, other=float("-inf"))
                kept += tl.where(x >= floor, tl.exp((x - top) / temperature), 0.0)
            wanted = tl.maximum(tl.sum(kept, axis=0) * top_p, 1e-30)
            low = tl.maximum(under, floor)
        found = _threshold(listed, held, longest, low, high, over, wanted, top, temperature, False, LANES, TURNS)
        floor = tl.maximum(floor, found)
    return floor


@triton.jit
def draw_token(base, nothing, scratch, width, top, temperature, top_p, min_p, top_k, uniform, BLOCK: tl.constexpr,
               GROUPS: tl.constexpr, TURNS: tl.constexpr):  # fmt: skip
    """The token where the sum of the weights that filters leave, in vocabulary order, passes the uniform number.

    top: the row's largest logit
    """
    lowest = top + tl.log(tl.maximum(min_p, 1e-38)) * temperature
    lowest = tl.where(min_p > 0.0, lowest, float("-inf"))
    if (top_p < 1.0) | ((top_k > 0.0) & (top_k < width)):
        floor = _floor(base, nothing, scratch, width, top, temperature, top_p, top_k, BLOCK, TURNS)
        lowest = tl.maximum(lowest, floor)
    groups = tl.arange(0, GROUPS)
    sums = tl.zeros([GROUPS], tl.float32)
    for group in range((width + BLOCK * GROUP - 1) // (BLOCK * GROUP)):
        share = tl.zeros([BLOCK], tl.float32)
        for at in tl.static_range(GROUP):
            share += _weights(base, (group * GROUP + at) * BLOCK, width, lowest, top, temperature, BLOCK)
        sums = tl.where(groups == group, tl.sum(share, axis=0), sums)
    reached = tl.cumsum(sums, axis=0)
    target = tl.minimum(uniform, 0.99999994) * tl.max(reached, axis=0)
    # Rounding may leave the target above every sum: then it is the last that was kept.
    last = tl.max(tl.where(sums > 0.0, groups, 0), axis=0)
    found = tl.minimum(tl.min(tl.where((reached > target) & (sums > 0.0), groups, GROUPS), axis=0), last)
    before = tl.sum(tl.where(groups == found, reached - sums, 0.0), axis=0)
    found_at = -1
    found_before = 0.0
    last_at = found * GROUP * BLOCK
    last_before = before
    for at in range(GROUP):
        start = (found * GROUP + at) * BLOCK
        weight = tl.sum(_weights(base, start, width, lowest, top, temperature, BLOCK), axis=0)
        here = (found_at < 0) & (before + weight > target)
        found_before = tl.where(here, before, found_before)
        found_at = tl.where(here, start, found_at)
        last_before = tl.where(weight > 0.0, before, last_before)
        last_at = tl.where(weight > 0.0, start, last_at)
        before += weight
    found_before = tl.where(found_at < 0, last_before, found_before)
    found_at = tl.where(found_at < 0, last_at, found_at)
    weights = _weights(base, found_at, width, lowest, top, temperature, BLOCK)
    passed = found_before + tl.cumsum(weights, axis=0) > target
    lanes = tl.arange(0, BLOCK)
    last_kept = tl.max(tl.where(weights > 0.0, lanes, 0), axis=0)
    return found_at + tl.minimum(tl.min(tl.where(passed & (weights > 0.0), lanes, BLOCK), axis=0), last_kept)
