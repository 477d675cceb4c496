"""Choosing the next token of each row: penalties, bias, temperature, filters, a seeded draw, log-probabilities.

A row's token depends on its own logits, parameters, seed and position alone, never on its neighbours, so a request
gives the same tokens in any batch. The draw is one uniform number from a counter-based generator of (seed, position)
against the cumulative distribution of the filtered row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from engine.kernels import reference
from engine.kernels.reference_sampling import MIN_TEMPERATURE
from engine.messages import SamplingParams, TokenLogprob
from engine.runner.constrain import constrain, is_constrained
from engine.scheduler.request import Request

NUCLEUS_CANDIDATES = 256  # sorted first; the whole row is sorted only if the nucleus is larger
_MASK = (1 << 64) - 1
Choose = Callable[..., torch.Tensor]


@dataclass(frozen=True, slots=True)
class Sampled:
    """token_id is None where the row's logits were not finite, or where an embedding was asked for."""

    token_id: int | None
    logprob: TokenLogprob | None = None
    followed: tuple[int, ...] = ()  # what the model chose after guesses that were right
    embedding: bytes | None = None  # little-endian float32, of length one


def sample(
    logits: torch.Tensor,
    requests: list[Request],
    drafts: Sequence[Sequence[int]] = (),
    *,
    pick_greedy: Callable[[torch.Tensor], torch.Tensor] = reference.pick_greedy,
    choose: Choose | None = None,
) -> list[Sampled]:
    """What each request's rows say: its next token and, as far as guesses were right, those after it.

    drafts are the guesses after each request's newest token, none if empty; a request has one row more than guesses.
    choose: the device's own choose_tokens, where that draws from a row at a time sooner than plain torch
    Shapes: logits [R, vocab] float32, row after row in the order of requests. Mutates: logits, each request's scratch
    """
    drafts = drafts or [()] * len(requests)
    greedy = pick_greedy(logits)
    raw: dict[int, torch.Tensor] = {}  # rows as the model gave them, where a grammar's mask comes between
    if is_constrained(requests):
        raw = _unmasked(logits, requests, drafts)
        greedy = constrain(logits, greedy, requests, drafts, lambda array: torch.from_numpy(array).to(logits.device))
    best = greedy.tolist()
    out = []
    at = 0
    for request, draft in zip(requests, drafts, strict=True):
        first = _one(logits, at, request, 0, best[at], raw.get(at), choose)
        token, followed = first.token_id, []
        for ahead, guess in enumerate(draft, start=1):
            if token != guess:
                break
            token = _one(logits, at + ahead, request, ahead, best[at + ahead], None, choose).token_id
            if token is None:
                break
            followed.append(token)
        out.append(replace(first, followed=tuple(followed)) if followed else first)
        at += 1 + len(draft)
    return out


def _one(
    logits: torch.Tensor,
    row: int,
    request: Request,
    ahead: int,
    greedy: int,
    raw: torch.Tensor | None,
    choose: Choose | None,
) -> Sampled:
    if greedy < 0:
        return Sampled(None)
    return Sampled(greedy) if request.is_plain_greedy else _sample_row(logits[row], request, ahead, raw, choose)


def _unmasked(
    logits: torch.Tensor, requests: list[Request], drafts: Sequence[Sequence[int]]
) -> dict[int, torch.Tensor]:
    rows, at = {}, 0
    for request, draft in zip(requests, drafts, strict=True):
        if request.grammar is not None and request.sampling.top_logprobs is not None:
            rows[at] = logits[at].clone()
        at += 1 + len(draft)
    return rows


def uniform(seed: int, counter: int) -> float:
    """A number in [0, 1) from (seed, counter): two rounds of SplitMix64's finaliser."""
    z = (seed * 0x9E3779B97F4A7C15 + counter * 0xD1B54A32D192ED03 + 0x632BE59BD9B4E019) & _MASK
    for _ in range(2):
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        z ^= z >> 31
    return (z >> 11) / (1 << 53)


def _sample_row(
    row: torch.Tensor, request: Request, ahead: int, raw: torch.Tensor | None, choose: Choose | None
) -> Sampled:
    """ahead: guessed tokens before this row's. raw: the row as the model gave it; None: row itself."""
    p = request.sampling
    if raw is None:
        raw = row.clone() if p.top_logprobs is not None else row
    if p.logit_bias:
        ids = torch.tensor(list(p.logit_bias), device=row.device)
        row[ids] += torch.tensor(list(p.logit_bias.values()), dtype=row.dtype, device=row.device)
    if request.masks_stops_after(ahead):
        row[torch.tensor(p.stop_token_ids, device=row.device)] = float("-inf")
    if request.has_penalties:
        _penalise(row, request)
    number = uniform(request.seed, len(request.token_ids) + ahead)
    if p.temperature == 0.0:
        token = int(row.argmax())
    else:
        token = _draw(row, p, number) if choose is None else _chosen(row, p, number, choose)
    return Sampled(token, _logprob(raw, token, p.top_logprobs) if p.top_logprobs is not None else None)


def _penalise(row: torch.Tensor, request: Request) -> None:
    """Repetition over prompt and output; presence and frequency over output."""
    p = request.sampling
    counts = request.scratch.get("output_counts")
    if not isinstance(counts, torch.Tensor):
        counts = torch.zeros(row.shape[0], dtype=row.dtype, device=row.device)
        seen = torch.zeros(row.shape[0], dtype=torch.bool, device=row.device)
        seen[torch.tensor(request.token_ids[: request.num_prompt], device=row.device)] = True
        request.scratch.update(output_counts=counts, seen=seen, counted=request.num_prompt)
    known = request.scratch["seen"]
    counted = request.scratch["counted"]
    assert isinstance(known, torch.Tensor)
    assert isinstance(counted, int)
    if counted < len(request.token_ids):
        fresh = torch.tensor(request.token_ids[counted:], device=row.device)
        counts.index_add_(0, fresh, torch.ones(len(fresh), dtype=counts.dtype, device=row.device))
        known[fresh] = True
        request.scratch["counted"] = len(request.token_ids)
    if p.repetition_penalty != 1.0:
        scaled = torch.where(row > 0, row / p.repetition_penalty, row * p.repetition_penalty)
        row.copy_(torch.where(known, scaled, row))
    row -= p.frequency_penalty * counts + p.presence_penalty * (counts > 0)


def _draw(row: torch.Tensor, p: SamplingParams, u: float) -> int:
    """The token where the cumulative probability of the filtered row, in vocabulary order, passes u.

    Values that tie at a filter's border all stay, as in reference_sampling.choose_tokens.
    """
    # Subtract the maximum before dividing: a tiny temperature then gives 0 and -inf, not inf - inf.
    probs = torch.softmax((row - row.max()) / max(p.temperature, MIN_TEMPERATURE), dim=-1)
    if p.top_k and p.top_k < probs.shape[0]:
        lowest = torch.topk(probs, p.top_k).values[-1]
        probs = torch.where(probs >= lowest, probs, 0.0)
    if p.top_p < 1.0:
        probs = torch.where(probs >= _nucleus_border(probs, p.top_p), probs, 0.0)
    if p.min_p > 0.0:
        probs = torch.where(probs >= p.min_p * probs.max(), probs, 0.0)
    cumulative = probs.double().cumsum(dim=-1)
    target = torch.tensor(u, dtype=torch.float64, device=row.device) * cumulative[-1]
    place = int(torch.searchsorted(cumulative, target, right=True))
    # A number near 1 may be rounded to the whole sum, which nothing passes: it is the last that is left.
    return place if place < probs.shape[0] else int(probs.nonzero()[-1])


def _chosen(row: torch.Tensor, p: SamplingParams, u: float, choose: Choose) -> int:
    """The same by a kernel; penalties are in the row already."""
    top_k = min(p.top_k, row.shape[0])
    settings = torch.tensor([[p.temperature, p.top_p, p.min_p, top_k, u, 1.0, 0.0, 0.0]])
    first, none = torch.zeros(1, dtype=torch.int32), torch.full((1,), -1, dtype=torch.int32)
    return int(choose(row.unsqueeze(0), first, settings, torch.empty(0, row.shape[0], dtype=torch.int32), none))


def _nucleus_border(probs: torch.Tensor, top_p: float) -> torch.Tensor:
    """The least probability among the most likely tokens that together reach top_p of the sum."""
    wanted = top_p * probs.sum()
    count = min(NUCLEUS_CANDIDATES, probs.shape[0])
    best = torch.topk(probs, count).values
    if float(best.sum()) < float(wanted) and count < probs.shape[0]:
        best = torch.sort(probs, descending=True).values
    before = best.cumsum(dim=-1) - best
    return best[max(1, int((before < wanted).sum())) - 1]


def _logprob(raw: torch.Tensor, token: int, top: int) -> TokenLogprob:
    """Of the model's own distribution, before any parameter of the request."""
    logprobs = torch.log_softmax(raw, dim=-1)
    alternatives: list[tuple[int, float]] = []
    if top:
        lowest = torch.topk(logprobs, min(top, logprobs.shape[0])).values[-1]
        ids = (logprobs >= lowest).nonzero().squeeze(1)  # more than wanted where values tie: the first tokens stay
        best = logprobs[ids].sort(descending=True, stable=True)
        alternatives = list(zip(ids[best.indices].tolist(), best.values.tolist(), strict=True))[:top]
    return TokenLogprob(token, float(logprobs[token]), alternatives)
