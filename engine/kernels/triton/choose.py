"""Choosing tokens in one kernel: a program a row, some passes over a row that stays in the second-level cache.

A row's sums are taken in an order of its own, so its token does not depend on its neighbours.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.kernels.reference_sampling import MIN_TEMPERATURE, ONE_OUTPUT, RECORD, SETTINGS_AT, Asked
from engine.kernels.triton.device import speaks_ptx
from engine.kernels.triton.filters import GROUP, LISTED, draw_token
from engine.kernels.triton.logprobs import tell_logprobs

BLOCK = 2048
TURNS = 16  # of a threshold's search: its interval shrinks by 4 ** 16, or to nothing before that
ADDED_BLOCK = 128
NUM_WARPS = 16
MOST_REGISTERS = 64  # of a thread: two programs share a multiprocessor


@triton.jit
def _read(base, counts, counted, mask, masked, start, width, BLOCK: tl.constexpr):
    """A block's logits, counts, and masks' words."""
    columns = start + tl.arange(0, BLOCK)
    inside = columns < width
    x = tl.load(base + columns, mask=inside, other=float("-inf"))
    count = tl.load(counts + columns, mask=inside & counted, other=0)
    return x, count, tl.load(mask + (columns >> 5), mask=inside & masked, other=-1)


@triton.jit
def _changed(x, count, word, start, repetition, presence, frequency, BLOCK: tl.constexpr):
    x = tl.where(count > 0, tl.where(x > 0, x / repetition, x * repetition), x)
    outputs = (count >> 1).to(tl.float32)
    x = x - frequency * outputs - tl.where(outputs > 0, presence, 0.0)
    return tl.where(((word >> ((start + tl.arange(0, BLOCK)) & 31)) & 1) == 0, float("-inf"), x)


@triton.jit
def _change(base, counts, counted, mask, masked, repetition, presence, frequency, width, BLOCK: tl.constexpr):
    """Leave the row with penalties and without what its mask forbids; its largest logit and where that first stands."""
    lanes = tl.arange(0, BLOCK)
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    best_at = tl.zeros([BLOCK], tl.int32)
    for start in range(0, width, 2 * BLOCK):  # two at once: no load can pass the store before it
        after = start + BLOCK
        x, count, word = _read(base, counts, counted, mask, masked, start, width, BLOCK)
        x1, count1, word1 = _read(base, counts, counted, mask, masked, after, width, BLOCK)
        x = _changed(x, count, word, start, repetition, presence, frequency, BLOCK)
        x1 = _changed(x1, count1, word1, after, repetition, presence, frequency, BLOCK)
        tl.store(base + start + lanes, x, mask=(start + lanes < width) & (counted | masked))
        tl.store(base + after + lanes, x1, mask=(after + lanes < width) & (counted | masked))
        best_at = tl.where(x > best, start + lanes, best_at)
        best = tl.maximum(best, x)
        best_at = tl.where(x1 > best, after + lanes, best_at)
        best = tl.maximum(best, x1)
    tl.debug_barrier()  # the row is read by other threads
    top = tl.max(best, axis=0)
    return top, tl.min(tl.where(best == top, best_at, width), axis=0)


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
def _row(
    base, spare, scratch, counts, mine, told, most, added, lists, largest, width,
    SETTINGS_AT: tl.constexpr, MIN_TEMPERATURE: tl.constexpr, ONE_OUTPUT: tl.constexpr, BLOCK: tl.constexpr,
    ADDED_BLOCK: tl.constexpr, CHUNKS: tl.constexpr, GROUPS: tl.constexpr, TURNS: tl.constexpr,
):  # fmt: skip
    """One row's token. Its record's words as reference_sampling names them. largest: of its logits as they are given"""
    count_row = tl.load(mine + 1).to(tl.int64)
    alternatives = tl.load(mine + 2)
    added_at = tl.load(mine + 3)
    num_added = tl.load(mine + 4)
    mask_row = tl.load(mine + 5)
    spare_row = tl.load(mine + 6)
    nothing = tl.load(mine + 7)
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
    chosen = largest
    top = tl.load(base + largest)
    raw_top = top
    log_sum = 0.0
    if alternatives >= 0:
        log_sum = tell_logprobs(
            base, own, spare_row >= 0, told, most, alternatives, raw_top, width, BLOCK, CHUNKS
        )  # fmt: skip
    if num_added > 0:
        _add(own, lists + added + added_at, lists + 2 * added + added_at, num_added, ADDED_BLOCK)
    if (count_row >= 0) | (mask_row >= 0) | (num_added > 0):
        mask = lists + 3 * added + mask_row.to(tl.int64) * ((width + 31) // 32)
        top, chosen = _change(
            own, counts + count_row * width, count_row >= 0, mask, mask_row >= 0, repetition, presence, frequency,
            width, BLOCK,
        )  # fmt: skip
    if asked > 0.0:
        chosen = draw_token(
            own, nothing, scratch, width, top, tl.maximum(asked, MIN_TEMPERATURE), top_p, min_p, top_k, uniform,
            BLOCK, GROUPS, TURNS,
        )  # fmt: skip
    if alternatives >= 0:
        logprob = tl.load(base + chosen) - raw_top - log_sum
        tl.store(told, logprob.to(tl.int32, bitcast=True))
    if count_row >= 0:
        place = counts + count_row * width + chosen
        tl.store(place, tl.load(place) + ONE_OUTPUT)
    return chosen


@triton.jit(do_not_specialize=["most", "rows", "added"])
def _draw_kernel(
    logits, picked, counts, words, spare, scratch, told, width, rows, added, most,
    RECORD: tl.constexpr, SETTINGS_AT: tl.constexpr, MIN_TEMPERATURE: tl.constexpr, ONE_OUTPUT: tl.constexpr,
    BLOCK: tl.constexpr, ADDED_BLOCK: tl.constexpr, LISTED: tl.constexpr, CHUNKS: tl.constexpr,
    GROUPS: tl.constexpr, TURNS: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0)
    mine = words + place * RECORD
    row = tl.load(mine).to(tl.int64)
    largest = tl.load(picked + row)
    if largest >= 0:
        chosen = _row(
            logits + row * width, spare, scratch + place * (BLOCK // 2 * LISTED), counts, mine,
            told + place * (1 + 2 * most), most, added, words + rows * RECORD, largest, width,
            SETTINGS_AT, MIN_TEMPERATURE, ONE_OUTPUT, BLOCK, ADDED_BLOCK, CHUNKS, GROUPS, TURNS,
        )  # fmt: skip
        tl.store(picked + row, chosen)


def draw_tokens(logits: torch.Tensor, picked: torch.Tensor, counts: torch.Tensor, asked: Asked) -> torch.Tensor | None:
    """reference_sampling.draw_tokens; logits and picked contiguous. What is told of a row not finite is undefined."""
    values = logits if logits.dtype == torch.float32 else logits.float()
    width = values.shape[1]
    spare = torch.empty(asked.spares, width, dtype=torch.float32, device=logits.device)
    scratch = torch.empty(asked.rows, BLOCK // 2 * LISTED.value, dtype=torch.float32, device=logits.device)
    told = torch.empty(asked.rows, 1 + 2 * max(0, asked.most), dtype=torch.int32, device=logits.device)
    if asked.rows:
        chunks = triton.cdiv(width, BLOCK)
        registers = {"maxnreg": MOST_REGISTERS} if speaks_ptx(logits.device) else {}
        _draw_kernel[(asked.rows,)](
            values, picked, counts, asked.words, spare, scratch, told, width, asked.rows, asked.added, asked.most,
            RECORD, SETTINGS_AT, MIN_TEMPERATURE, ONE_OUTPUT, BLOCK, ADDED_BLOCK, LISTED,
            triton.next_power_of_2(chunks), triton.next_power_of_2(triton.cdiv(chunks, GROUP.value)), TURNS,
            num_warps=NUM_WARPS, **registers,
        )  # fmt: skip
    return told if asked.most >= 0 else None
