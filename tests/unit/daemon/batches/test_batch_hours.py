"""Hours of the day and completion windows."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from daemon.batches.desk import read_window
from daemon.batches.hours import read_hours
from engine.errors import InvalidParameter


@pytest.mark.parametrize("window", ["", "24", "0h", "31d", "1000h", "-1h", "1m"])
def test_window_that_is_none_is_refused(window: str) -> None:
    with pytest.raises(InvalidParameter):
        read_window(window)


def test_window_is_hours_or_days() -> None:
    assert (read_window("24h"), read_window("7d")) == (86_400, 604_800)


@pytest.mark.parametrize(
    ("hours", "at", "inside"),
    [
        ("idle", "03:00", True),
        ("22:00-06:00", "21:59", False),
        ("22:00-06:00", "22:00", True),
        ("22:00-06:00", "05:59", True),
        ("22:00-06:00", "06:00", False),
        ("09:00-17:30", "17:29", True),
        ("09:00-17:30", "17:30", False),
    ],
)
def test_hours_include_their_begin_and_not_their_end(hours: str, at: str, inside: bool) -> None:
    zone = ZoneInfo("Europe/Berlin")
    now = datetime.fromisoformat(f"2026-03-10T{at}:00").replace(tzinfo=zone).astimezone(UTC)
    assert read_hours(hours).include(now, zone) is inside


@pytest.mark.parametrize("hours", ["", "22-6", "22:00-22:00", "24:00-06:00", "always"])
def test_hours_that_are_none_are_refused(hours: str) -> None:
    with pytest.raises(ValueError, match="idle"):
        read_hours(hours)
