"""Drafter: what guesses the next tokens. Every guess is checked by the model itself, so a bad one costs time only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from engine.scheduler.chunk import ScheduledChunk
    from engine.scheduler.request import Request

Wish = tuple["Request", int]  # a request, and the most guesses that are wanted for it


class Drafter(Protocol):
    """Owner: Speculation. All tokens of the requests are on the host when it is asked."""

    name: str
    free: bool  # guessing costs next to nothing beside a step, so it is asked even where checking may not pay

    def propose(self, wishes: Sequence[Wish]) -> dict[str, list[int]]:
        """Guesses by request id, none longer than wished; a request without any is left out."""
        ...

    def observe(self, chunks: Sequence[ScheduledChunk]) -> None:
        """A step of the model with these chunks is queued."""
        ...

    def release(self, request_id: str) -> None:
        """The request has ended."""
        ...


def accepted(draft: Sequence[int], picked: Sequence[int | None]) -> int:
    """How many leading drafted tokens the model itself picked. picked[i] is its choice where draft[i] stands."""
    count = 0
    while count < len(draft) and draft[count] == picked[count]:
        count += 1
    return count
