"""Drafts by looking up: what followed the last time the newest tokens stood in this text.

No second model; good where output repeats its input (code, quotes, forms), nothing elsewhere. The longest recent
n-gram that occurred before wins, its latest occurrence first. Source: prompt-lookup decoding; the search is ours.
"""

from __future__ import annotations

from collections.abc import Sequence

LONGEST = 4  # tokens compared; longer matches are rarely different
SHORTEST = 2  # one equal token says little
SEARCHED = 4_096  # newest tokens looked through


def propose(tokens: Sequence[int], count: int) -> list[int]:
    """Up to count tokens that may follow; empty if nothing like the end was seen before."""
    if count < 1 or len(tokens) <= SHORTEST:
        return []
    recent = list(tokens[-SEARCHED:])
    for length in range(min(LONGEST, len(recent) - 1), SHORTEST - 1, -1):
        tail = recent[-length:]
        for start in range(len(recent) - length - 1, -1, -1):
            if recent[start] == tail[0] and recent[start : start + length] == tail:
                return recent[start + length : start + length + count]
    return []


def accepted(draft: Sequence[int], picked: Sequence[int | None]) -> int:
    """How many leading drafted tokens the model itself picked. picked[i] is its choice where draft[i] stands."""
    count = 0
    while count < len(draft) and draft[count] == picked[count]:
        count += 1
    return count
