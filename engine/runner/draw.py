"""Drawing tokens on the device for a whole batch, without asking the host anything.

The same distribution as sampler.sample's, from the same uniform numbers; a row's token depends on its own logits and
parameters alone. Rows without top_k and top_p are drawn in vocabulary order; others are sorted first. Requests whose
parameters look at their own tokens (penalties, bias, stop masks) or want log-probabilities stay with the sampler.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from engine.devices import Device
from engine.runner.sampler import uniform
from engine.scheduler.request import Request

MIN_TEMPERATURE = 1e-5
HAVE_DOUBLE = ("cpu", "cuda")


@dataclass(frozen=True, slots=True)
class Draw:
    """Host arrays of the rows that are drawn; greedy rows are not in it."""

    plain_rows: NDArray[np.int32]
    sorted_rows: NDArray[np.int32]
    values: NDArray[np.float32]  # [rows, 5]: temperature, top_p, min_p, top_k, the uniform number


def can_draw(request: Request) -> bool:
    """Whether the device can choose this request's next token by itself."""
    return not request.needs_own_tokens


def plan_draw(requests: list[Request]) -> Draw | None:
    """What to draw for a batch's rows; None if all are greedy."""
    plain: list[int] = []
    filtered: list[int] = []
    values = np.ones((len(requests), 5), np.float32)
    for row, request in enumerate(requests):
        if request.is_plain_greedy:
            continue
        p = request.sampling
        number = uniform(request.seed, len(request.token_ids))
        values[row] = max(p.temperature, MIN_TEMPERATURE), p.top_p, p.min_p, p.top_k, number
        (filtered if p.top_k or p.top_p < 1.0 else plain).append(row)
    if not plain and not filtered:
        return None
    return Draw(np.array(plain, np.int32), np.array(filtered, np.int32), values)


def draw(logits: torch.Tensor, greedy: torch.Tensor, plan: Draw, device: Device) -> torch.Tensor:
    """Tokens of all rows: greedy ones as they are, drawn ones from their distribution. -1 stays: not finite.

    Shapes: logits [R, vocab] float32; greedy [R] int32 -> [R] int32
    """
    values = device.copy_to_device(plan.values)
    out = greedy.clone()
    for rows, choose in ((plan.plain_rows, _in_vocabulary_order), (plan.sorted_rows, _sorted)):
        if len(rows):
            index = device.copy_to_device(rows).long()
            picked = choose(logits[index], values[index]).to(out.dtype)
            out[index] = torch.where(greedy[index] < 0, greedy[index], picked)
    return out


def _probabilities(logits: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    # Subtract the maximum before dividing: a tiny temperature then gives 0 and -inf, not inf - inf.
    return torch.softmax((logits - logits.amax(dim=-1, keepdim=True)) / values[:, :1], dim=-1)


def _in_vocabulary_order(logits: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    probs = _probabilities(logits, values)
    likely = probs >= values[:, 2:3] * probs.amax(dim=-1, keepdim=True)
    return _place(torch.where(likely, probs, 0.0), values)


def _sorted(logits: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """top_k first, top_p of what it leaves, min_p of the likeliest."""
    probs, order = _probabilities(logits, values).sort(dim=-1, descending=True, stable=True)
    top_p, min_p, top_k = values[:, 1:2], values[:, 2:3], values[:, 3:4]
    rank = torch.arange(probs.shape[1], device=probs.device)
    probs = torch.where((rank < top_k) | (top_k == 0), probs, 0.0)
    probs = probs / probs.sum(dim=-1, keepdim=True)
    before = probs.cumsum(dim=-1) - probs
    likely = probs >= min_p * probs[:, :1]
    kept = ((before < top_p) | (top_p >= 1.0) | (rank == 0)) & likely
    place = _place(torch.where(kept, probs, 0.0), values)
    return order.gather(-1, place.unsqueeze(-1)).squeeze(-1)


def _place(probs: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Where the cumulative probability passes the uniform number. Shapes: probs [r, V] -> [r]"""
    wide = torch.float64 if probs.device.type in HAVE_DOUBLE else torch.float32
    cumulative = probs.to(wide).cumsum(dim=-1)
    target = values[:, 4:5].to(wide) * cumulative[:, -1:]
    return torch.searchsorted(cumulative, target, right=True).squeeze(-1).clamp_(max=probs.shape[1] - 1)
