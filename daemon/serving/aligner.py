"""LogprobAligner: a token's log-probability comes out no earlier than its text."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from daemon.serving.events import AlternativeLogprob, LogprobEntry
from engine.messages import TokenLogprob

if TYPE_CHECKING:
    from engine.text import TextPipeline


class LogprobAligner:
    """Lets a token's entry out no earlier than its text, so that a cut stop string takes its own along."""

    def __init__(self, text: TextPipeline) -> None:
        self._text = text
        self._held: deque[tuple[int, LogprobEntry]] = deque()  # (end in bytes of the choice's text, entry)
        self._held_until = 0
        self._emitted = 0

    def hold(self, logprobs: list[TokenLogprob]) -> None:
        for item in logprobs:
            entry = self._entry(item)
            self._held_until += len(entry.token_bytes)
            self._held.append((self._held_until, entry))

    def release(self, text: str, *, all_covered: bool) -> tuple[LogprobEntry, ...]:
        """Entries whose bytes have been told; all of them where no stop string can take text back."""
        self._emitted += len(text.encode())
        released: list[LogprobEntry] = []
        while self._held and (all_covered or self._held[0][0] <= self._emitted):
            released.append(self._held.popleft()[1])
        return tuple(released)

    def rest(self) -> tuple[LogprobEntry, ...]:
        released = tuple(entry for _, entry in self._held)
        self._held.clear()
        return released

    def _entry(self, item: TokenLogprob) -> LogprobEntry:
        raw = self._text.token_bytes(item.token_id)
        top: list[AlternativeLogprob] = []
        for token_id, logprob in item.top:
            other = self._text.token_bytes(token_id)
            top.append(AlternativeLogprob(other.decode("utf-8", "replace"), other, finite(logprob)))
        return LogprobEntry(raw.decode("utf-8", "replace"), raw, finite(item.logprob), tuple(top))


def finite(logprob: float) -> float:
    """JSON has no infinity; -9999 is what clients know as impossible."""
    return logprob if -9999.0 < logprob < 9999.0 else -9999.0
