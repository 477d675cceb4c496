"""Foresight: whether a request may begin beside those that run, with room for its prompt and what all will write.

Without it a pool that is nearly full takes a prompt whose end does not fit, and computes it again and again.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.kv.layout import PageLayout
from engine.kv.manager import KvManager
from engine.messages import Knobs
from engine.scheduler.request import Request

CHUNK_SHARE = 16  # a windowed layer holds a whole chunk at once: no more than this part of the pool
SMALLEST_CHUNK = 512
RECHECK_STEPS = 8  # a refusal is thought over only so often while the same ones run


class Foresight:
    """Owner: the scheduler."""

    def __init__(self, kv: KvManager) -> None:
        self._kv = kv
        self._widest = chunk_within(kv.layout, kv.num_large)
        self._refused: tuple[str, int] | None = None  # whom, and beside how many

    def chunk_tokens(self, knobs: Knobs) -> int:
        """Prompt tokens of one request in a step."""
        return knobs.prefill_chunk if self._widest is None else min(knobs.prefill_chunk, self._widest)

    def refuses_again(self, request: Request, running: Sequence[Request]) -> bool:
        """Whether it was refused and nothing has changed that would be worth another look."""
        return self._refused == (request.id, len(running)) and self._kv.clock % RECHECK_STEPS != 0

    def has_room(self, request: Request, running: Sequence[Request], knobs: Knobs) -> bool:
        """Whether the pool holds the request's prompt and Knobs.ahead_tokens more of everybody, if none ends meanwhile.

        Pages that the request and the others hold already are counted. Conservative: whole large pages.
        """
        if not knobs.ahead_tokens or not running:
            return True
        chunk = self.chunk_tokens(knobs)
        everybody = (*running, request)
        wanted = sum(still_wanted(self._kv.layout, each, chunk, knobs.ahead_tokens) for each in everybody)
        fits = wanted <= self._kv.num_large_free
        self._refused = None if fits else (request.id, len(running))
        return fits


def chunk_within(layout: PageLayout, num_large: int) -> int | None:
    """The most prompt tokens at once of which windowed layers do not take too much of the pool; None: any number."""
    per_token = sum(1 / (layout.page_tokens * g.ratio) for g in layout.groups if g.window_tokens is not None)
    if not per_token:
        return None
    tokens = int(num_large / CHUNK_SHARE / per_token)
    return max(SMALLEST_CHUNK, tokens // layout.page_tokens * layout.page_tokens)


def still_wanted(layout: PageLayout, request: Request, chunk_tokens: int, ahead_tokens: int) -> float:
    """Large pages that a request will take at its height beside those it has."""
    growth = min(max(0, request.sampling.max_tokens - request.num_output), ahead_tokens)
    chunk = min(chunk_tokens, request.num_uncomputed)
    height = layout.large_pages_for(len(request.token_ids) + growth, chunk)
    held = sum(
        (len(table) - released) / group.ratio
        for table, released, group in zip(request.pages.tables, request.pages.released, layout.groups, strict=True)
    )
    return max(0.0, height - held)
