"""StopMatcher: cuts a stream of text before the first stop string."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Watches one stream for stop strings.

    Holds back only an end of the text that could still become a stop; that is never as long as the longest stop.
    The stop that is complete first ends the stream, so that it does not matter how the text is split; of two complete
    at the same character, the longer. Owner: one stream; not for several threads.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(dict.fromkeys(stop for stop in stops if stop))
        self._held = ""
        self.matched: str | None = None  # the stop that ended the stream

    def feed(self, text: str) -> tuple[str, bool]:
        """(text that is safe to show, whether a stop was reached); after a stop everything is swallowed."""
        if self.matched is not None:
            return "", True
        text = self._held + text
        self._held = ""
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            _, at, self.matched = min(found)
            return text[:at], True
        open_at = self._open_at(text)
        self._held = text[open_at:]
        return text[:open_at], False

    def flush(self) -> str:
        """The end of the stream: what was held back is text after all."""
        held, self._held = self._held, ""
        return held

    def _open_at(self, text: str) -> int:
        """Where the longest end of text that is a proper prefix of a stop begins."""
        longest = max(map(len, self._stops), default=0)
        for at in range(max(0, len(text) - longest + 1), len(text)):
            if any(stop.startswith(text[at:]) for stop in self._stops):
                return at
        return len(text)
