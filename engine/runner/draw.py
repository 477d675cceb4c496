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
from engine.kernels.reference_sampling import ADDED, NOTHING, RECORD, ROW, SETTINGS_AT, TOP, Asked
from engine.messages import TokenLogprob
from engine.runner.constrain import Masks
from engine.runner.sampler import Sampled, uniform
from engine.runner.token_counts import TokenCounts
from engine.scheduler.request import Request

DrawTokens = Callable[..., torch.Tensor | None]
Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Draw:
    """What a batch's rows want beyond their largest logit, on the host."""

    words: Ints  # of Asked
    rows: list[int]
    added: int
    masks: int
    most: int
    spares: int


@dataclass(frozen=True, slots=True)
class DrawnLogprobs:
    """On the device, of the rows drawn; see reference_sampling.draw_tokens."""

    rows: list[int]
    told: torch.Tensor


def plan_draw(
    requests: Sequence[Request], counts: TokenCounts, ahead: Sequence[int] = (), masks: Masks | None = None
) -> Draw | None:
    """What to choose for a batch's rows; None if all take their largest logit and no more is wanted.

    ahead: guessed tokens between each row's request and the row; none if empty. masks: of rows with a grammar
    Mutates: counts, which expects the tokens to be drawn
    """
    mask_of = {} if masks is None else {row: at for at, row in enumerate(masks.rows)}
    vocab = counts.table.shape[1]
    rows: list[int] = []
    records: list[tuple[int, ...]] = []
    settings: list[tuple[float, ...]] = []
    added: list[tuple[int, int, float]] = []
    most = -1
    spares = 0
    for row, request in enumerate(requests):
        mask = mask_of.get(row, -1)
        if request.is_plain_greedy and mask < 0:
            continue
        guessed = ahead[row] if ahead else 0
        p = request.sampling
        wanted = -1 if p.top_logprobs is None else min(p.top_logprobs, vocab)
        most = max(most, wanted)
        numbers = dict(p.logit_bias or {})
        if request.masks_stops_after(guessed):
            numbers |= dict.fromkeys(p.stop_token_ids, float("-inf"))
        count_row = counts.row_of(request) if request.has_penalties else -1
        spare = -1
        if wanted >= 0 and (numbers or count_row >= 0 or mask >= 0):
            spare, spares = spares, spares + 1
        records.append((row, count_row, wanted, len(added), len(numbers), mask, spare, 0))
        added += [(len(rows), token, number) for token, number in numbers.items()]
        number = uniform(request.seed, len(request.token_ids) + guessed)
        settings.append(
            (p.temperature, p.top_p, p.min_p, min(p.top_k, vocab), number,
             p.repetition_penalty, p.presence_penalty, p.frequency_penalty)
        )  # fmt: skip
        rows.append(row)
    if not rows:
        return None
    words = np.empty((len(rows), RECORD), np.int32)
    words[:, :SETTINGS_AT] = records
    words[:, SETTINGS_AT:] = np.array(settings, np.float32).view(np.int32)
    parts = [words.reshape(-1)]
    if added:
        owners, tokens, numbers_added = zip(*added, strict=True)
        parts += [np.array(owners, np.int32), np.array(tokens, np.int32)]
        parts.append(np.array(numbers_added, np.float32).view(np.int32))
    if masks is not None:
        parts.append(masks.allowed.reshape(-1))
    return Draw(np.concatenate(parts), rows, len(added), len(mask_of), most, spares)


def draw(
    logits: torch.Tensor, picked: torch.Tensor, plan: Draw, counts: TokenCounts, draw_tokens: DrawTokens, device: Device
) -> DrawnLogprobs | None:
    """Choose the planned rows' tokens; the log-probabilities wanted. -1 stays: a row that is not finite.

    Shapes: logits [R, vocab] contiguous; picked [R] int32. Mutates: logits, picked, counts
    """
    words = device.copy_to_device(plan.words)
    asked = Asked(words, len(plan.rows), plan.added, plan.masks, plan.most, plan.spares)
    told = draw_tokens(logits, picked, counts.table, asked)
    return None if told is None else DrawnLogprobs(plan.rows, told)


def draw_once(counts: TokenCounts, draw_tokens: DrawTokens, device: Device) -> None:
    """Draw from a row that is nobody's, so that what draws is compiled."""
    words = np.full(RECORD, -1, np.int32)
    words[[ROW, TOP, ADDED, NOTHING]] = 0
    words[SETTINGS_AT:] = np.array((1.0, 0.9, 0.0, 5.0, 0.5, 1.0, 0.0, 0.0), np.float32).view(np.int32)
    logits = torch.zeros(1, counts.table.shape[1], device=device.torch_device)
    picked = torch.zeros(1, dtype=torch.int32, device=device.torch_device)
    draw(logits, picked, Draw(words, [0], 0, 0, 0, 0), counts, draw_tokens, device)


def reader(
    requests: Sequence[Request], picked: torch.Tensor, logprobs: DrawnLogprobs | None, device: Device
) -> Callable[[], list[Sampled]]:
    """Start copying the tokens to the host; the function returned waits for them."""
    copies = [device.copy_to_host(tensor) for tensor in ([picked] if logprobs is None else [picked, logprobs.told])]

    def read() -> list[Sampled]:
        copies[-1][1]()  # copies come in the order they were queued in
        tokens = copies[0][0].tolist()[: len(requests)]
        told: dict[int, TokenLogprob] = {}
        if logprobs is not None:
            words = copies[1][0].numpy()
            most = words.shape[1] // 2
            numbers, others = words[:, : 1 + most].view(np.float32).tolist(), words[:, 1 + most :].tolist()
            for at, row in enumerate(logprobs.rows):
                count = requests[row].sampling.top_logprobs
                if count is not None and tokens[row] >= 0:
                    own, *top = numbers[at]
                    told[row] = TokenLogprob(tokens[row], own, list(zip(others[at], top, strict=True))[:count])
        return [Sampled(token if token >= 0 else None, told.get(row)) for row, token in enumerate(tokens)]

    return read
