"""Where a text may still turn into a marker: shared by the parsers that watch a stream for one."""

from __future__ import annotations


def held_length(text: str, marker: str) -> int:
    """Characters at the end of text that are a proper prefix of marker, the most there are."""
    for length in range(min(len(marker) - 1, len(text)), 0, -1):
        if text.endswith(marker[:length]):
            return length
    return 0
