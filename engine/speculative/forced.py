"""Drafts out of a grammar: where it leaves one way on, the tokens that spell it."""

from __future__ import annotations

from collections.abc import Sequence

from engine.speculative.drafter import Wish


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

    def release(self, request_id: str) -> None:
        """Nothing is kept."""
