"""When batches may run: always when nobody waits, or only within given hours of the day."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, time
from zoneinfo import ZoneInfo

_HOURS = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)")
WHEN_IDLE = "idle"


@dataclass(frozen=True, slots=True)
class BatchHours:
    """Both None: at any hour. The end is not part of them; they may go over midnight."""

    begin: time | None = None
    end: time | None = None

    def include(self, now: datetime, zone: ZoneInfo) -> bool:
        if self.begin is None or self.end is None:
            return True
        clock = now.astimezone(zone).time()
        if self.begin <= self.end:
            return self.begin <= clock < self.end
        return clock >= self.begin or clock < self.end


def read_hours(text: str) -> BatchHours:
    """Raises: ValueError for what is neither "idle" nor hours such as 22:00-06:00"""
    if text == WHEN_IDLE:
        return BatchHours()
    match = _HOURS.fullmatch(text)
    if match is None or match.group(1, 2) == match.group(3, 4):
        raise ValueError(f'{text!r} is neither "{WHEN_IDLE}" nor two times such as 22:00-06:00')
    first, second, third, fourth = (int(part) for part in match.groups())
    return BatchHours(time(first, second), time(third, fourth))
