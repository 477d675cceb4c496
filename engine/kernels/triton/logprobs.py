"""A row's log-probabilities in one pass, inside the kernel that draws.

Each lane keeps the largest of the columns that are its own; of the lane that gives an alternative alone is the next
looked up.
"""

from __future__ import annotations

import triton
import triton.language as tl

NOWHERE = tl.constexpr(2147483647)


@triton.jit
def tell_logprobs(base, copy, copies, told, most, count, top, width, BLOCK: tl.constexpr, CHUNKS: tl.constexpr):
    """The logarithm of the sum of exp beside the row's largest logit `top`.

    Stores the `count` alternatives, and the row's copy if it `copies`.
    """
    lanes = tl.arange(0, BLOCK)
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    best_at = tl.full([BLOCK], NOWHERE, tl.int32)
    total = tl.zeros([BLOCK], tl.float32)
    if copies:
        for start in tl.range(0, width, BLOCK, loop_unroll_factor=4):
            columns = start + lanes
            tl.store(copy + columns, tl.load(base + columns, mask=columns < width), mask=columns < width)
        tl.debug_barrier()  # other threads read it
    for start in tl.range(0, width, BLOCK, loop_unroll_factor=4):
        columns = start + lanes
        inside = columns < width
        x = tl.load(base + columns, mask=inside, other=float("-inf"))
        total += tl.exp(x - top)
        best_at = tl.where(inside & ((x > best) | (best_at == NOWHERE)), columns, best_at)
        best = tl.maximum(best, x)
    log_sum = tl.log(tl.sum(total, axis=0))
    own = tl.arange(0, CHUNKS)  # the columns of one lane
    for at in range(count):
        value = tl.max(best, axis=0)
        token = tl.min(tl.where(best == value, best_at, NOWHERE), axis=0)
        tl.store(told + 1 + at, (value - top - log_sum).to(tl.int32, bitcast=True))
        tl.store(told + 1 + most + at, token)
        lane = token % BLOCK
        columns = lane + own * BLOCK
        x = tl.load(base + columns, mask=columns < width, other=float("-inf"))
        after = (columns < width) & ((x < value) | ((x == value) & (columns > token)))
        following = tl.max(tl.where(after, x, float("-inf")), axis=0)
        place = tl.min(tl.where(after & (x == following), columns, NOWHERE), axis=0)
        best = tl.where(lanes == lane, following, best)
        best_at = tl.where(lanes == lane, place, best_at)
    return log_sum
