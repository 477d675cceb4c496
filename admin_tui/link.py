"""How fresh what the console shows is, and when to ask again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

STALE_AFTER_S = 5.0
SILENT_AFTER_S = 30.0
RETRY_MAX_S = 30.0


class LinkState(StrEnum):
    CONNECTING = "CONNECTING"  # nothing has answered yet
    OK = "OK"
    STALE = "STALE"  # the last answer is old: values are dimmed and writes are off
    SILENT = "NO ANSWER"  # so old that a person should look
    DOWN = "DOWN"  # nobody listens


@dataclass(frozen=True, slots=True)
class Link:
    """What is known of the connection; a new one for every answer or failure."""

    answered_mono: float | None = None
    down: bool = False
    failures: int = 0
    reason: str = ""
    hint: str = ""

    def answered(self, now_mono: float) -> Link:
        return Link(answered_mono=now_mono)

    def failed(self, reason: str, hint: str, *, down: bool) -> Link:
        return replace(self, down=down, failures=self.failures + 1, reason=reason, hint=hint)

    def age_s(self, now_mono: float) -> float | None:
        return None if self.answered_mono is None else max(0.0, now_mono - self.answered_mono)

    def state(self, now_mono: float) -> LinkState:
        if self.down:
            return LinkState.DOWN
        age_s = self.age_s(now_mono)
        if age_s is None:
            return LinkState.CONNECTING
        if age_s > SILENT_AFTER_S:
            return LinkState.SILENT
        return LinkState.STALE if age_s > STALE_AFTER_S else LinkState.OK

    def writable(self, now_mono: float) -> bool:
        return self.state(now_mono) is LinkState.OK

    def wait_s(self, interval_s: float) -> float:
        """Until the next question: the interval, or after failures 1, 2, 4 .. 30 s."""
        if not self.failures:
            return interval_s
        return max(interval_s, min(RETRY_MAX_S, float(2 ** min(self.failures - 1, 5))))
