"""Drafts out of a grammar: where it leaves one way on, the tokens that spell it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.speculative.drafter import Wish

if TYPE_CHECKING:
    from engine.scheduler.chunk import ScheduledChunk


class ForcedDrafter:
    """See Drafter."""

    name = "grammar"
    free = True

    def propose(self, wishes: Sequence[Wish]) -> dict[str, list[int]]:
        found = {}
        for request, count in wishes:
            forced = request.grammar.forced()[:count] if request.grammar is not None else []
            if forced:
                found[request.id] = forced
        return found

    def observe(self, chunks: Sequence[ScheduledChunk]) -> None:
        """Tokens are all it needs."""

    def release(self, request_id: str) -> None:
        """Nothing is kept."""
