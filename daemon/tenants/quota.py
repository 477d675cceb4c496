"""Quotas: tokens of a calendar day and month, in UTC. Reserved before they are made, settled when they are known."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

_KEPT_WINDOWS = 8  # of one period: a clock that is set back finds what it had counted


class Period(StrEnum):
    DAY = "day"
    MONTH = "month"

    def start_of(self, now: datetime) -> datetime:
        start = now.replace(hour=0, minute=0, second=0, microsecond=0)
        return start if self is Period.DAY else start.replace(day=1)

    def end_of(self, now: datetime) -> datetime:
        start = self.start_of(now)
        if self is Period.DAY:
            return start + timedelta(days=1)
        return (start + timedelta(days=32)).replace(day=1)


@dataclass(slots=True)
class Window:
    """Tokens of one day or month. Mutable. Owner: its Quota."""

    used: int = 0
    reserved: int = 0

    def settle(self, reserved: int, used: int) -> None:
        self.reserved -= reserved
        self.used += used


class Quota:
    """What one tenant used of one period's quota. Owner: Admission."""

    def __init__(self, period: Period) -> None:
        self.period = period
        self._windows: OrderedDict[datetime, Window] = OrderedDict()

    def window(self, now: datetime) -> Window:
        """The one that `now` lies in; a reservation is settled in the window that it was made in."""
        start = self.period.start_of(now)
        if start not in self._windows:
            self._windows[start] = Window()
            while len(self._windows) > _KEPT_WINDOWS:
                self._windows.popitem(last=False)
        return self._windows[start]

    def resets_in_s(self, now: datetime) -> float:
        return (self.period.end_of(now) - now).total_seconds()


class Quotas:
    """Both periods of one tenant."""

    def __init__(self) -> None:
        self.day = Quota(Period.DAY)
        self.month = Quota(Period.MONTH)

    def both(self) -> tuple[Quota, Quota]:
        return self.day, self.month
