"""The two clocks that the console reads; tests give it one that stands still."""

from __future__ import annotations

import time
from datetime import UTC, datetime, tzinfo


class Clock:
    """Wall time for what is shown, monotonic time for how long ago."""

    zone: tzinfo | None = None  # None: the zone of this machine

    def now(self) -> datetime:
        return datetime.now(UTC)

    def mono(self) -> float:
        return time.monotonic()

    def local(self, at: datetime) -> datetime:
        return at.astimezone(self.zone)
