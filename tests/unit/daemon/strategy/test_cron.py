"""Cron starts: crontab's meaning, skipped and repeated hours, and a minute-by-minute truth to compare with."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.strategy.cron import CronStarts
from engine.errors import InvalidParameter

BERLIN = ZoneInfo("Europe/Berlin")
ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "America/Sao_Paulo", "UTC")


def starts(cron: str, begin: datetime, days: float, zone: str = "Europe/Berlin") -> list[datetime]:
    return list(CronStarts(cron, ZoneInfo(zone)).between(begin, begin + timedelta(days=days)))


def test_weekday_numbers_mean_what_crontab_says() -> None:
    monday = datetime(2026, 6, 1, tzinfo=UTC)
    local = [start.astimezone(BERLIN).strftime("%a") for start in starts("0 8 * * 1-5", monday, 7)]
    assert local == ["Mon", "Tue", "Wed", "Thu", "Fri"]
    for sunday in ("0", "7", "sun"):
        assert [s.strftime("%a") for s in starts(f"0 8 * * {sunday}", monday, 7)] == ["Sun"]
    assert [s.strftime("%a") for s in starts("0 8 * * fri-mon", monday, 7)] == ["Mon", "Fri", "Sat", "Sun"]
    assert len(starts("0 8 * * */2", monday, 7)) == 4


@pytest.mark.parametrize("cron", ["1," * 5000 + "1 * * * *", "\u0665 * * * *", "0 8 * * \u0665", "0 8 * * mon-\u0665"])
def test_expression_that_is_too_long_or_has_foreign_digits_is_refused(cron: str) -> None:
    with pytest.raises(InvalidParameter, match="ASCII") as caught:
        CronStarts(cron, BERLIN)
    assert len(caught.value.message) < 200


def test_both_day_fields_given_either_matches() -> None:
    found = starts("0 8 10 * mon", datetime(2026, 6, 1, tzinfo=UTC), 14)
    assert [s.day for s in found] == [1, 8, 10]


def test_skipped_hour_starts_when_the_clock_jumps() -> None:
    found = starts("30 2 * * *", datetime(2026, 3, 28, tzinfo=UTC), 2)
    assert [s.isoformat() for s in found] == ["2026-03-28T01:30:00+00:00", "2026-03-29T01:00:00+00:00"]


def test_repeated_hour_starts_once() -> None:
    found = starts("30 2 * * *", datetime(2026, 10, 24, 12, tzinfo=UTC), 2)
    assert [s.isoformat() for s in found] == ["2026-10-25T00:30:00+00:00", "2026-10-26T01:30:00+00:00"]


def test_wildcard_hour_means_real_time() -> None:
    for day in (datetime(2026, 3, 29, tzinfo=UTC), datetime(2026, 10, 25, tzinfo=UTC)):
        found = starts("0 * * * *", day - timedelta(seconds=1), 1)
        assert found == [day + timedelta(hours=h) for h in range(24)]


@pytest.mark.parametrize(
    "cron",
    ["", "0 8 * *", "0 8 * * * *", "61 8 * * *", "0 24 * * *", "0 8 30 2 *", "0 8 * * 8", "0 8 * * xyz", "a b c d e"],
)
def test_expression_that_is_none_is_refused(cron: str) -> None:
    with pytest.raises(InvalidParameter):
        CronStarts(cron, BERLIN)


@given(
    zone=st.sampled_from(ZONES),
    minute=st.sampled_from(["0", "30", "*/20", "5,50"]),
    hour=st.sampled_from(["1", "2", "3", "0-4", "2,8", "23"]),
    weekday=st.sampled_from(["*", "0", "6,7", "mon-fri"]),
    begin=st.datetimes(datetime(2026, 1, 1), datetime(2027, 1, 1)),
)
@settings(max_examples=60, deadline=None)
def test_starts_equal_a_walk_over_every_minute(
    zone: str, minute: str, hour: str, weekday: str, begin: datetime
) -> None:
    """Each matching wall-clock minute starts once: at its first showing, or at the jump that skips it."""
    cron = CronStarts(f"{minute} {hour} * * {weekday}", ZoneInfo(zone))
    begin = begin.replace(tzinfo=UTC, second=0, microsecond=0)
    end = begin + timedelta(days=2)
    assert list(cron.between(begin, end)) == _walk(minute, hour, weekday, ZoneInfo(zone), begin, end)


def _walk(minute: str, hour: str, weekday: str, zone: ZoneInfo, begin: datetime, end: datetime) -> list[datetime]:
    found: list[datetime] = []
    seen_walls: set[datetime] = set()
    moment = begin - timedelta(days=1)
    previous = moment.astimezone(zone).replace(tzinfo=None) - timedelta(minutes=1)
    while moment <= end:
        wall = moment.astimezone(zone).replace(tzinfo=None)
        skipped = previous + timedelta(minutes=1)
        candidates = {wall}
        while skipped < wall:
            candidates.add(skipped)
            skipped += timedelta(minutes=1)
        hit = any(_matches(c, minute, hour, weekday) and c not in seen_walls for c in candidates)
        seen_walls |= candidates
        if hit and begin < moment <= end:
            found.append(moment)
        previous = max(previous, wall)
        moment += timedelta(minutes=1)
    return found


def _matches(wall: datetime, minute: str, hour: str, weekday: str) -> bool:
    minutes = {"0": {0}, "30": {30}, "*/20": {0, 20, 40}, "5,50": {5, 50}}[minute]
    hours = {"1": {1}, "2": {2}, "3": {3}, "0-4": set(range(5)), "2,8": {2, 8}, "23": {23}}[hour]
    days = {"*": set(range(7)), "0": {6}, "6,7": {5, 6}, "mon-fri": set(range(5))}[weekday]
    return wall.minute in minutes and wall.hour in hours and wall.weekday() in days
