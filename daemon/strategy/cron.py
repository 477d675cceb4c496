"""Cron: the starts of a crontab expression as instants, with a rule for the hours that clocks skip or repeat.

The fields mean what crontab(5) says: weekdays 0 and 7 are Sunday, and where both day fields are given either may match.
A start in a skipped hour happens when the clock jumps; one in a repeated hour happens once, the first time. Where the
hour field is a wildcard the expression means real time: skipped hours have no starts and repeated ones have both.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from datetime import UTC, date, datetime, timedelta, tzinfo
from heapq import heappop, heappush

from apscheduler.triggers.cron import CronTrigger

from engine.errors import InvalidParameter

_DAY_NAMES = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_ITEM = re.compile(r"^(\*|[a-z]{3}|[0-9])(?:-([a-z]{3}|[0-9]))?(?:/([0-9]+))?$")
_MOST_CHARACTERS = 256  # every minute of an hour one by one takes 170


class CronStarts:
    """The starts of one expression in one zone. Frozen once made.

    except_dates: local dates that have no start
    Raises: InvalidParameter for an expression that is not one, or that no date ever matches.
    """

    def __init__(self, expression: str, zone: tzinfo, except_dates: Collection[date] = ()) -> None:
        if len(expression) > _MOST_CHARACTERS or not expression.isascii():
            what = "has characters other than ASCII" if not expression.isascii() else f"has {len(expression):,}"
            raise InvalidParameter(
                f"the cron expression {expression[:40]!r} {what}; it may have {_MOST_CHARACTERS} of ASCII.",
                "Ranges and steps are shorter than lists: '*/5' or '1-5'.",
                param="cron",
            )
        fields = expression.lower().split()
        if len(fields) != 5:
            raise InvalidParameter(
                f"the cron expression {expression!r} has {len(fields)} fields; it must have 5.",
                "minute hour day month weekday, for example '0 8 * * mon-fri'.",
                param="cron",
            )
        self.expression = expression
        self._zone = zone
        self._except_dates = frozenset(except_dates)
        self._wildcard_hour = fields[1].startswith("*")
        minute, hour, day, month, weekday = fields
        weekday = _weekdays(weekday, expression)
        either = [(day, weekday)]
        if not day.startswith("*") and weekday != "*":
            either = [(day, "*"), ("*", weekday)]
        try:
            # In UTC, because the expression is matched against the wall clock; _instants() maps that to real time.
            self._walls = [
                CronTrigger(minute=minute, hour=hour, day=d, month=month, day_of_week=w, timezone=UTC)
                for d, w in either
            ]
        except (ValueError, TypeError) as error:
            raise InvalidParameter(
                f"the cron expression {expression!r} cannot be read: {error}.",
                "minute hour day month weekday, for example '0 8 * * mon-fri'.",
                param="cron",
            ) from error
        if all(trigger.get_next_fire_time(None, datetime(2000, 1, 1, tzinfo=UTC)) is None for trigger in self._walls):
            raise InvalidParameter(
                f"the cron expression {expression!r} matches no date.", "Check the day and the month.", param="cron"
            )

    def between(self, after: datetime, until: datetime) -> Iterator[datetime]:
        """Starts in (after, until], in order, each once, in UTC."""
        waiting: list[datetime] = []  # heap: the second pass of a repeated hour waits for the rest of the first
        seen: datetime | None = None
        for wall in self._wall_times(after, until):
            instants, earliest = self._instants(wall)
            while waiting and waiting[0] <= earliest:
                start = heappop(waiting)
                if start > until:
                    return
                if start > after and start != seen:
                    seen = start
                    yield start
            for instant in instants:
                heappush(waiting, instant)
        for start in sorted(waiting):
            if after < start <= until and start != seen:
                seen = start
                yield start

    def next_after(self, moment: datetime, horizon: timedelta) -> datetime | None:
        """The first start after `moment`; None if there is none within `horizon`."""
        window = timedelta(days=2)
        reached = moment
        while reached < moment + horizon:
            until = min(moment + horizon, reached + window)
            found = next(self.between(reached, until), None)
            if found is not None:
                return found
            reached, window = until, window * 4
        return None

    def last_at(self, moment: datetime, within: timedelta) -> datetime | None:
        """The latest start in (moment - within, moment]; None if there is none."""
        window = timedelta(hours=1)
        while True:
            window = min(window, within)
            found = None
            for start in self.between(moment - window, moment):
                found = start
            if found is not None or window == within:
                return found
            window *= 6

    def _wall_times(self, after: datetime, until: datetime) -> Iterator[datetime]:
        """Matching wall-clock times as naive datetimes, in order, that may lie in a range of instants."""
        cursor = after.astimezone(UTC) + min(self._offsets_near(after))
        end = until.astimezone(UTC) + max(self._offsets_near(until))
        while True:
            hits = [hit for t in self._walls if (hit := t.get_next_fire_time(None, cursor)) is not None]
            if not hits or min(hits) > end:
                return
            wall = min(hits)
            if wall.date() not in self._except_dates:
                yield wall.replace(tzinfo=None)
            cursor = wall + timedelta(minutes=1)

    def _offsets_near(self, moment: datetime) -> list[timedelta]:
        day = timedelta(days=1)
        local = [(moment + shift).astimezone(self._zone).utcoffset() for shift in (-day, timedelta(0), day)]
        return [offset or timedelta(0) for offset in local]

    def _instants(self, wall: datetime) -> tuple[tuple[datetime, ...], datetime]:
        """The real times of a wall-clock time by the rule above, and an instant that no later wall time precedes."""
        first = wall.replace(tzinfo=self._zone, fold=0).astimezone(UTC)
        second = wall.replace(tzinfo=self._zone, fold=1).astimezone(UTC)
        if first == second:
            return (first,), first
        if first > second:  # fold 0 uses the offset before the change: the clock never shows this time
            change = self._end_of_gap(second, first)
            return (() if self._wildcard_hour else (change,)), change
        return ((first, second) if self._wildcard_hour else (first,)), first

    def _end_of_gap(self, early: datetime, late: datetime) -> datetime:
        """The instant of the clock change, which lies in (early, late]. Found by halving to the minute."""
        low, high = early, late
        before = low.astimezone(self._zone).utcoffset()
        while high - low > timedelta(minutes=1):
            middle = low + timedelta(minutes=int((high - low) / timedelta(minutes=1)) // 2)
            if middle.astimezone(self._zone).utcoffset() == before:
                low = middle
            else:
                high = middle
        return high


def _weekdays(field: str, expression: str) -> str:
    """Crontab's weekday field as the names that mean the same to the trigger."""
    if field == "*":
        return field
    days: set[int] = set()
    for item in field.split(","):
        match = _ITEM.match(item)
        if match is None:
            raise _bad_weekday(field, expression)
        start, end, step = match.groups()
        if start == "*":
            first, last = 0, 6
        else:
            first = _day(start, field, expression)
            last = _day(end, field, expression) if end else (first if step is None else 6)
        if last < first:
            last += 7
        days.update(day % 7 for day in range(first, last + 1, max(1, int(step or 1))))
    return "*" if len(days) == 7 else ",".join(_DAY_NAMES[day] for day in sorted(days))


def _day(text: str, field: str, expression: str) -> int:
    if text.isdigit() and int(text) <= 7:
        return int(text)
    if text in _DAY_NAMES:
        return _DAY_NAMES.index(text)
    raise _bad_weekday(field, expression)


def _bad_weekday(field: str, expression: str) -> InvalidParameter:
    return InvalidParameter(
        f"the weekday field {field!r} of {expression!r} cannot be read.",
        "Use 0-7 (0 and 7 are Sunday) or sun, mon, tue, wed, thu, fri, sat.",
        param="cron",
    )
