"""From token deltas to text: one ChoiceDecoder a choice. Holds back half characters and possible stop strings."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from daemon.serving.events import AlternativeLogprob, LogprobEntry, TextDelta
from engine.messages import TokenDelta, TokenLogprob
from engine.text import IncrementalDetokenizer, StopMatcher

if TYPE_CHECKING:
    from engine.text import TextPipeline


class ChoiceDecoder:
    """Mutable. Owner: one Generation."""

    def __init__(
        self, index: int, text: TextPipeline, stops: tuple[str, ...], *, logprobs: bool, continuing: bool
    ) -> None:
        self.index = index
        self.num_tokens = 0
        self.done = False  # its ChoiceDone has been told
        self._detokenizer = IncrementalDetokenizer(text, continuing=continuing)
        self._matcher = StopMatcher(stops) if stops else None
        self._aligner = LogprobAligner(text) if logprobs else None

    def feed(self, delta: TokenDelta) -> tuple[TextDelta | None, bool]:
        """The text that is certain now, and whether a stop string was met."""
        self.num_tokens += len(delta.token_ids)
        text = self._detokenizer.feed(delta.token_ids)
        stopped = False
        if self._matcher:
            text, stopped = self._matcher.feed(text)
        if self._aligner is None:
            return (TextDelta(self.index, text) if text else None), stopped
        self._aligner.hold(delta.logprobs or [])
        entries = self._aligner.release(text, all_covered=self._matcher is None)
        return (TextDelta(self.index, text, entries) if text or entries else None), stopped

    def flush(self) -> TextDelta | None:
        """What was held back, once no more tokens come."""
        text = self._detokenizer.flush()
        if self._matcher:
            text, stopped = self._matcher.feed(text)
            if not stopped:
                text += self._matcher.flush()
        entries = self._aligner.rest() if self._aligner else None
        return TextDelta(self.index, text, entries) if text or entries else None


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
