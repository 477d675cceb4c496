"""Choosing a batch's tokens on the device without asking the host anything.

The same choice as sampler.sample's, from the same uniform numbers; a row's token depends on its own logits, tokens and
parameters alone. Rows that take their largest logit are not touched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from engine.devices import Device
from engine.kernels.reference_sampling import NUM_SETTINGS
from engine.messages import TokenLogprob
from engine.runner.sampler import Sampled, uniform
from engine.runner.token_counts import TokenCounts
from engine.scheduler.request import Request

Choose = Callable[..., torch.Tensor]
Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Draw:
    """Host arrays of a batch's rows that are more than the largest logit."""

    rows: Ints  # [r] chosen by the kernel
    settings: NDArray[np.float32]  # [r, 8] as reference_sampling.choose_tokens takes them
    count_rows: Ints  # [r] of TokenCounts' table, -1: none
    added_rows: Ints  # [b] row of each number that is added to a logit
    added_ids: Ints  # [b] its token
    added: NDArray[np.float32]  # [b] a bias, or -inf for a stop token that may not come yet
    logprob_rows: Ints  # [l] rows whose log-probabilities are wanted
    most_alternatives: int  # of those rows


@dataclass(frozen=True, slots=True)
class DrawnLogprobs:
    """On the device. Shapes: chosen [l], top [l, k], top_ids [l, k]"""

    rows: Ints
    chosen: torch.Tensor
    top: torch.Tensor
    top_ids: torch.Tensor


def can_draw(request: Request) -> bool:
    """Whether the device can choose this request's next token by itself."""
    # Log-probabilities are the model's own: the sampler keeps the row from before its grammar's mask.
    return request.grammar is None or request.sampling.top_logprobs is None


def plan_draw(requests: list[Request], counts: TokenCounts, ahead: Sequence[int] = ()) -> Draw | None:
    """What to choose for a batch's rows; None if all take their largest logit and no more is wanted.

    ahead: guessed tokens between each row's request and the row; none if empty
    Mutates: counts, which expects the tokens to be drawn
    """
    rows: list[int] = []
    settings: list[tuple[float, ...]] = []
    count_rows: list[int] = []
    added: list[tuple[int, int, float]] = []
    logprob_rows: list[int] = []
    most = 0
    for row, request in enumerate(requests):
        if request.is_plain_greedy:
            continue
        guessed = ahead[row] if ahead else 0
        masks_stops = request.masks_stops_after(guessed)
        p = request.sampling
        if p.top_logprobs is not None:
            logprob_rows.append(row)
            most = max(most, p.top_logprobs)
        if p.logit_bias:
            added += [(row, token, bias) for token, bias in p.logit_bias.items()]
        if masks_stops:
            added += [(row, token, float("-inf")) for token in p.stop_token_ids]
        if p.temperature == 0.0 and not (request.has_penalties or p.logit_bias or masks_stops):
            continue
        rows.append(row)
        number = uniform(request.seed, len(request.token_ids) + guessed)
        settings.append(
            (p.temperature, p.top_p, p.min_p, p.top_k, number,
             p.repetition_penalty, p.presence_penalty, p.frequency_penalty)
        )  # fmt: skip
        count_rows.append(counts.row_of(request) if request.has_penalties else -1)
    if not rows and not logprob_rows:
        return None
    return Draw(
        np.array(rows, np.int32),
        np.array(settings, np.float32).reshape(len(rows), NUM_SETTINGS),
        np.array(count_rows, np.int32),
        np.array([row for row, _, _ in added], np.int32),
        np.array([token for _, token, _ in added], np.int32),
        np.array([value for _, _, value in added], np.float32),
        np.array(logprob_rows, np.int32),
        most,
    )


def draw(
    logits: torch.Tensor, greedy: torch.Tensor, plan: Draw, counts: TokenCounts, choose: Choose, device: Device
) -> tuple[torch.Tensor, DrawnLogprobs | None]:
    """Tokens of all rows, and the log-probabilities wanted. -1 stays: a row that is not finite.

    Shapes: logits [R, vocab] float32 contiguous; greedy [R] int32 -> [R] int32. Mutates: logits, counts
    """
    send = device.copy_to_device
    wanted = send(plan.logprob_rows).long() if len(plan.logprob_rows) else None
    raw = None if wanted is None else torch.log_softmax(logits[wanted], dim=-1)
    if len(plan.added):
        places = send(plan.added_rows).long() * logits.shape[1] + send(plan.added_ids).long()
        logits.view(-1).index_add_(0, places, send(plan.added))
    out = greedy
    if len(plan.rows):
        rows, count_rows = send(plan.rows), send(plan.count_rows)
        picked = choose(logits, rows, send(plan.settings), counts.table, count_rows)
        index = rows.long()
        picked = torch.where(greedy[index] < 0, greedy[index], picked)
        if (plan.count_rows >= 0).any():
            counts.add(count_rows, picked)
        out = greedy.clone()
        out[index] = picked
    if raw is None or wanted is None:
        return out, None
    chosen = raw.gather(1, out[wanted].clamp(min=0).long().unsqueeze(1)).squeeze(1)
    top, top_ids = torch.topk(raw, min(plan.most_alternatives, raw.shape[1]), dim=-1)
    return out, DrawnLogprobs(plan.logprob_rows, chosen, top, top_ids.to(torch.int32))


def reader(
    requests: list[Request], picked: torch.Tensor, logprobs: DrawnLogprobs | None, device: Device
) -> Callable[[], list[Sampled]]:
    """Start copying the tokens to the host; the function returned waits for them."""
    tensors = [picked] if logprobs is None else [picked, logprobs.chosen, logprobs.top, logprobs.top_ids]
    copies = [device.copy_to_host(tensor) for tensor in tensors]

    def read() -> list[Sampled]:
        copies[-1][1]()  # copies come in the order they were queued in
        tokens = copies[0][0].tolist()[: len(requests)]
        told: dict[int, TokenLogprob] = {}
        if logprobs is not None:
            chosen, top, top_ids = (copy.tolist() for copy, _ in copies[1:])
            for at, row in enumerate(logprobs.rows.tolist()):
                count = requests[row].sampling.top_logprobs or 0
                best = list(zip(top_ids[at][:count], top[at][:count], strict=True))
                told[row] = TokenLogprob(tokens[row], chosen[at], best)
        return [Sampled(token if token >= 0 else None, told.get(row)) for row, token in enumerate(tokens)]

    return read
