"""Drafts by looking up: what followed the last time the text ended as it does now.

No second model; good where output repeats its input (code, quotes, forms), nothing elsewhere. Of the places where the
newest tokens stood before, the one that agrees furthest back wins, the latest of equals. Source: prompt-lookup and
suffix decoding; the index is ours.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.speculative.drafter import Wish

if TYPE_CHECKING:
    from engine.scheduler.chunk import ScheduledChunk

SHORTEST = 2  # equal tokens that make a match; one says little
LONGEST = 32  # ... that are compared
PLACES = 8  # the latest ones of a pair that are remembered
INDEXED = 32_768  # newest tokens of a prompt that are looked through
A_STEP = 4_096  # tokens indexed at once: a long prompt is taken in over several steps


class SuffixIndex:
    """Where each pair of tokens stood in one growing text. Owner: one request's drafts."""

    def __init__(self) -> None:
        self._ends: dict[tuple[int, int], deque[int]] = {}  # pair -> places of its second token, oldest first
        self._next = -1  # the first token that is not indexed yet

    def extend(self, tokens: Sequence[int]) -> bool:
        """Take in what is new of the text. False: there is more than one step's worth, ask again."""
        if self._next < 0:
            self._next = max(1, len(tokens) - INDEXED)
        # The pair at the very end is what is looked for: it is indexed once something follows.
        end = min(len(tokens) - 1, self._next + A_STEP)
        for at in range(self._next, end):
            pair = (tokens[at - 1], tokens[at])
            places = self._ends.get(pair)
            if places is None:
                places = self._ends[pair] = deque(maxlen=PLACES)
            places.append(at)
        self._next = max(self._next, end)
        return end >= len(tokens) - 1

    def propose(self, tokens: Sequence[int], count: int) -> list[int]:
        """Up to count tokens that may follow, no more than twice the length of the match."""
        if count < 1 or len(tokens) <= SHORTEST:
            return []
        last = len(tokens) - 1
        best, best_length = -1, 0
        for place in reversed(self._ends.get((tokens[-2], tokens[-1]), ())):
            length = SHORTEST
            while length < min(LONGEST, place + 1) and tokens[place - length] == tokens[last - length]:
                length += 1
            if length > best_length:
                best, best_length = place, length
        if best < 0:
            return []
        draft: list[int] = []
        for ahead in range(1, min(count, 2 * best_length) + 1):
            at = best + ahead
            draft.append(tokens[at] if at <= last else draft[at - last - 1])  # a text in a circle goes on
        return draft


class LookupDrafter:
    """See Drafter."""

    name = "lookup"
    free = True

    def __init__(self) -> None:
        self._indexes: dict[str, SuffixIndex] = {}

    def propose(self, wishes: Sequence[Wish]) -> dict[str, list[int]]:
        found = {}
        for request, count in wishes:
            index = self._indexes.setdefault(request.id, SuffixIndex())
            if index.extend(request.token_ids):
                draft = index.propose(request.token_ids, count)
                if draft:
                    found[request.id] = draft
        return found

    def observe(self, chunks: Sequence[ScheduledChunk]) -> None:
        """Tokens are all it needs."""

    def release(self, request_id: str) -> None:
        self._indexes.pop(request_id, None)
