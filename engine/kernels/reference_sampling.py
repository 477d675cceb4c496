"""Plain torch truth of choosing tokens: penalties, temperature, filters and the draw, for many rows at once."""

from __future__ import annotations

import torch
from torch import Tensor

# Columns of a row's settings.
TEMPERATURE, TOP_P, MIN_P, TOP_K, UNIFORM, REPETITION, PRESENCE, FREQUENCY = range(8)
NUM_SETTINGS = 8
IN_PROMPT = 1  # the lowest bit of a count
ONE_OUTPUT = 2  # what one more output token adds to a count
MIN_TEMPERATURE = 1e-5
HAVE_DOUBLE = ("cpu", "cuda")


def choose_tokens(logits: Tensor, rows: Tensor, settings: Tensor, counts: Tensor, count_rows: Tensor) -> Tensor:
    """A token for each of some rows, drawn from the row's own distribution by the row's own uniform number.

    Penalties first (repetition over prompt and output, presence and frequency over output); then temperature; of what
    top_k leaves the likeliest that reach top_p, of those what min_p of the likeliest admits. Values that tie at a
    border all stay. The draw goes through what is left in vocabulary order. Temperature 0 takes the first largest.

    Shapes: logits [R, V] float32; rows [r] int32; settings [r, 8] float32 (temperature, top_p, min_p, top_k, the
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
    """Where the cumulative probability passes the uniform number. Shapes: probs [r, V], uniform [r] -> [r]"""
    wide = torch.float64 if probs.device.type in HAVE_DOUBLE else torch.float32
    cumulative = probs.to(wide).cumsum(dim=-1)
    target = uniform[:, None].to(wide) * cumulative[:, -1:]
    return torch.searchsorted(cumulative, target, right=True).squeeze(-1).clamp_(max=probs.shape[1] - 1)
