"""Grammar masks on a step's logits: filled on the host while the device computes, applied there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from engine.scheduler.request import Request

Send = Callable[[NDArray[np.int32]], torch.Tensor]


def is_constrained(requests: Sequence[Request]) -> bool:
    return any(request.grammar is not None for request in requests)


@dataclass(frozen=True, slots=True)
class Masks:
    """Shapes: allowed [rows, vocab / 32], a bit a token that may come."""

    rows: list[int]
    allowed: NDArray[np.int32]


def fill_masks(requests: Sequence[Request], drafts: Sequence[Sequence[int]], vocab_size: int) -> Masks | None:
    """What grammars allow in a batch's rows; None if none has one.

    drafts are the guesses after each request's newest token; a request has one row more than guesses. A grammar that
    fails says so in its state, and its rows stay as they are. Mutates: the grammars' failure
    """
    rows: list[int] = []
    masks = []
    words = -(-vocab_size // 32)
    at = 0
    for request, draft in zip(requests, drafts, strict=True):
        count = 1 + len(draft)
        if request.grammar is not None:
            mask = np.full((count, max(words, request.grammar.words)), -1, np.int32)
            may_stop = [not request.masks_stops_after(ahead) for ahead in range(count)]
            request.grammar.fill_guessed(mask[:, : request.grammar.words], draft, may_stop=may_stop)
            masks.append(mask[:, :words])
            rows += range(at, at + count)
        at += count
    return Masks(rows, np.ascontiguousarray(np.concatenate(masks))) if rows else None


def constrain(
    logits: torch.Tensor,
    picked: torch.Tensor,
    requests: Sequence[Request],
    drafts: Sequence[Sequence[int]],
    send: Send,
) -> torch.Tensor:
    """Forbid what grammars do not allow, and choose those rows' largest logits again. -1 stays: a row not finite.

    Shapes: logits [R, vocab] float32; picked [R] int32 -> [R] int32. Mutates: logits, the grammars' failure
    """
    masks = fill_masks(requests, drafts, logits.shape[1])
    if masks is None:
        return picked
    if logits.device.type == "cpu":
        return mask_here(logits, picked, masks.rows, masks.allowed)
    return mask_there(logits, picked, masks.rows, masks.allowed, send)


def mask_there(
    logits: torch.Tensor, picked: torch.Tensor, rows: list[int], allowed: NDArray[np.int32], send: Send
) -> torch.Tensor:
    """Shapes: allowed [rows, vocab / 32], a bit a token."""
    index = send(np.array(rows, np.int32)).long()
    bits = send(allowed)
    places = torch.arange(logits.shape[1], device=logits.device)
    blocked = ((bits[:, places >> 5] >> (places & 31).to(torch.int32)) & 1) == 0
    masked = logits[index].masked_fill_(blocked, float("-inf"))
    logits[index] = masked
    out = picked.clone()
    out[index] = torch.where(picked[index] < 0, picked[index], masked.argmax(dim=-1).to(picked.dtype))
    return out


def mask_here(logits: torch.Tensor, picked: torch.Tensor, rows: list[int], allowed: NDArray[np.int32]) -> torch.Tensor:
    """The same in place on the host, where unpacking bits is much cheaper than a tensor's index sums."""
    values, best = logits.numpy(), picked.numpy().copy()
    blocked = np.unpackbits(~allowed.view(np.uint8), axis=1, count=logits.shape[1], bitorder="little").view(np.bool_)
    for row, mask in zip(rows, blocked, strict=True):
        if best[row] >= 0:
            np.copyto(values[row], -np.inf, where=mask)
            best[row] = values[row].argmax()
    return torch.from_numpy(best)
