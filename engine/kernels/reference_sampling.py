"""Plain torch truth of choosing tokens: masks, penalties, filters, the draw, log-probabilities; many rows at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Columns of a row's settings.
TEMPERATURE, TOP_P, MIN_P, TOP_K, UNIFORM, REPETITION, PRESENCE, FREQUENCY = range(8)
NUM_SETTINGS = 8
IN_PROMPT = 1  # the lowest bit of a count
ONE_OUTPUT = 2  # what one more output token adds to a count
MIN_TEMPERATURE = 1e-5
HAVE_DOUBLE = ("cpu", "cuda")

# Words of a row's record, the settings' floats as their bits.
ROW, COUNT_ROW, TOP, ADDED_AT, ADDED, MASK, SPARE, NOTHING = range(8)
SETTINGS_AT = 8
RECORD = 16


@dataclass(frozen=True, slots=True)
class Asked:
    """What some rows of a batch want beyond their largest logit: one buffer, which one copy brings to the device.

    words is int32: a record a row (its row; its row of counts or -1; how many alternatives or -1; where its added
    numbers begin and how many they are; its mask or -1; its spare row or -1; 0; settings); three lists of what is added
    to logits, a token once a row: which record's, the token, the number; masks, a bit a token that may come.
    """

    words: Tensor
    rows: int
    added: int
    masks: int
    most: int  # alternatives that a row wants; -1: no row wants its log-probability
    spares: int  # rows that are changed and of which the log-probabilities are wanted as they were

    @property
    def records(self) -> Tensor:
        return self.words[: self.rows * RECORD].view(self.rows, RECORD)


def draw_tokens(logits: Tensor, picked: Tensor, counts: Tensor, asked: Asked) -> Tensor | None:
    """Choose tokens as asked, where picked has the largest logits' places; a negative one (not finite) stays.

    To logits come first what is added, then choose_tokens' penalties, then the mask. Log-probabilities are of the
    logits as they were given; of alternatives that tie the lower token comes first. The token counts for its row.

    Shapes: logits [R, V]; picked [R] int32; counts [C, V] int32 -> [asked.rows, 1 + 2 * most] int32, None if most is
    -1: the bits of the token's log-probability, of the alternatives' and, from 1 + most, these alternatives
    Mutates: picked, counts; logits of rows that are changed may be left so
    """
    records, width = asked.records, logits.shape[1]
    rows, count_rows = records[:, ROW].long(), records[:, COUNT_ROW]
    values = logits[rows].float()
    logprobs = torch.log_softmax(values, dim=-1)
    if asked.added:
        at = asked.rows * RECORD
        owners, ids, bits = asked.words[at : at + 3 * asked.added].view(3, asked.added)
        values.view(-1).index_add_(0, owners.long() * width + ids, bits.view(torch.float32))
    settings = records[:, SETTINGS_AT:].view(torch.float32)
    if counts.shape[0]:
        seen = torch.where(count_rows[:, None] >= 0, counts[count_rows.clamp(min=0).long()], 0)
        values = _penalised(values, seen, settings)
    if asked.masks:
        allowed = asked.words[asked.rows * RECORD + 3 * asked.added :].view(asked.masks, -1)
        values = _masked(values, allowed, records[:, MASK])
    none = torch.full_like(count_rows, -1)
    chosen = choose_tokens(values, torch.arange(asked.rows, device=logits.device), settings, counts[:0], none)
    chosen = torch.where(picked[rows] < 0, picked[rows], chosen)
    picked[rows] = chosen
    if counts.shape[0]:
        counted = (count_rows >= 0) & (chosen >= 0)
        places = count_rows.clamp(min=0).long() * width + chosen.clamp(min=0)
        counts.view(-1).index_add_(0, places, counted.to(torch.int32) * ONE_OUTPUT)
    if asked.most < 0:
        return None
    own = logprobs.gather(1, chosen.clamp(min=0).long().unsqueeze(1))
    ordered = logprobs.sort(dim=-1, descending=True, stable=True)
    best, tokens = ordered.values[:, : asked.most], ordered.indices[:, : asked.most]
    return torch.cat([torch.cat([own, best], dim=1).view(torch.int32), tokens.to(torch.int32)], dim=1)


def _masked(values: Tensor, allowed: Tensor, masks: Tensor) -> Tensor:
    """Shapes: values [r, V]; allowed [M, V / 32]; masks [r], the row of allowed or -1"""
    places = torch.arange(values.shape[1], device=values.device)
    words = allowed[masks.clamp(min=0).long()][:, places >> 5]
    blocked = ((words >> (places & 31).to(torch.int32)) & 1) == 0
    return torch.where(blocked & (masks >= 0)[:, None], float("-inf"), values)


def choose_tokens(logits: Tensor, rows: Tensor, settings: Tensor, counts: Tensor, count_rows: Tensor) -> Tensor:
    """A token for each of some rows, drawn from the row's own distribution by the row's own uniform number.

    Penalties first (repetition over prompt and output, presence and frequency over output); then temperature; of what
    top_k leaves the likeliest that reach top_p, of those what min_p of the likeliest admits. Values that tie at a
    border all stay. The draw goes through what is left in vocabulary order. Temperature 0 takes the first largest.

    Shapes: logits [R, V] float32; rows [r]; settings [r, 8] float32 (temperature, top_p, min_p, top_k, the
    uniform number in [0, 1), repetition, presence, frequency); counts [C, V] int32, twice a token's number of outputs
    plus one if the prompt has it; count_rows [r] int32, -1 where a row has none -> [r] int32
    Mutates: logits may be left with the penalties applied
    """
    values = logits[rows.long()]
    counted = count_rows >= 0
    if counts.shape[0]:
        seen = torch.where(counted[:, None], counts[count_rows.clamp(min=0).long()], 0)
        values = _penalised(values, seen, settings)
    top = values.amax(dim=-1, keepdim=True)
    greedy = values.argmax(dim=-1)
    # Subtract the maximum before dividing: a tiny temperature then gives 0 and -inf, not inf - inf.
    probs = torch.softmax((values - top) / settings[:, TEMPERATURE, None].clamp(min=MIN_TEMPERATURE), dim=-1)
    drawn = _place(torch.where(_kept(probs, settings), probs, 0.0), settings[:, UNIFORM])
    return torch.where(settings[:, TEMPERATURE] == 0.0, greedy, drawn).to(torch.int32)


def _penalised(values: Tensor, seen: Tensor, settings: Tensor) -> Tensor:
    repetition = settings[:, REPETITION, None]
    scaled = torch.where(values > 0, values / repetition, values * repetition)
    values = torch.where(seen > 0, scaled, values)
    outputs = seen >> 1
    return values - settings[:, FREQUENCY, None] * outputs - settings[:, PRESENCE, None] * (outputs > 0)


def _kept(probs: Tensor, settings: Tensor) -> Tensor:
    ordered = probs.sort(dim=-1, descending=True).values
    rank = torch.arange(probs.shape[1], device=probs.device)
    top_k, top_p = settings[:, TOP_K, None], settings[:, TOP_P, None]
    in_k = (rank < top_k) | (top_k == 0)
    lowest = torch.where(in_k, ordered, 1.0).amin(dim=-1, keepdim=True)
    left = torch.where(ordered >= lowest, ordered, 0.0)
    before = left.cumsum(dim=-1) - left
    in_p = ((before < top_p * left.sum(dim=-1, keepdim=True)) | (top_p >= 1.0) | (rank == 0)) & (ordered >= lowest)
    lowest = torch.where(in_p, ordered, 1.0).amin(dim=-1, keepdim=True)
    return (probs >= lowest) & (probs >= settings[:, MIN_P, None] * ordered[:, :1])


def _place(probs: Tensor, uniform: Tensor) -> Tensor:
    """Where the cumulative probability passes the uniform number: never what has none, whatever is rounded.

    A number near 1 may be rounded to 1, which no sum passes: then it is the last that has any.

    Shapes: probs [r, V], uniform [r] -> [r]
    """
    wide = torch.float64 if probs.device.type in HAVE_DOUBLE else torch.float32
    cumulative = probs.to(wide).cumsum(dim=-1)
    target = uniform[:, None].to(wide) * cumulative[:, -1:]
    places = torch.arange(probs.shape[1], device=probs.device)
    last = torch.where(probs > 0, places, 0).amax(dim=-1)
    passed = torch.where((probs > 0) & (cumulative > target), places, probs.shape[1]).amin(dim=-1)
    return torch.minimum(passed, last)
