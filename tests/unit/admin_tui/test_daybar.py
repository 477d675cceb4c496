"""The bar of a day, on days of 23, 24 and 25 hours."""

from __future__ import annotations

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from admin_tui.answers import Span
from admin_tui.clock import Clock
from admin_tui.daybar import daybar
from admin_tui.look import Line

PARIS = ZoneInfo("Europe/Paris")


class ParisClock(Clock):
    zone = PARIS


def text_of(lines: list[Line]) -> list[str]:
    return ["".join(cell.text for cell in line) for line in lines]


@pytest.mark.parametrize(
    ("month", "day", "column_of_noon"), [(9, 15, 36), (3, 29, 34), (10, 25, 37)], ids=["24 h", "23 h", "25 h"]
)
def test_daybar_puts_now_and_hours_where_they_are_on_that_day(month: int, day: int, column_of_noon: int) -> None:
    noon = datetime(2026, month, day, 12, tzinfo=PARIS)
    midnight = noon.replace(hour=0)
    spans = [Span("night", midnight, noon), Span("day", noon, midnight + timedelta(days=1), "rule office")]
    hours, bar, pointer, then = text_of(daybar(spans, noon, ParisClock(), 99))
    assert hours.index("12") == column_of_noon == pointer.index("^") == bar.index("[day")
    assert len(bar) == 72
    assert then == "now day (rule office)   next: no change is planned today"


def test_daybar_when_nothing_is_planned_says_how_to() -> None:
    (line,) = text_of(daybar([], datetime(2026, 9, 15, 12, tzinfo=PARIS), ParisClock(), 99))
    assert "bayard schedule add" in line


def test_daybar_names_the_next_change_and_when() -> None:
    now = datetime(2026, 9, 15, 14, 2, tzinfo=PARIS)
    spans = [
        Span("day", now.replace(hour=8, minute=0), now.replace(hour=20, minute=0)),
        Span("night", now.replace(hour=20, minute=0), now.replace(hour=20, minute=0) + timedelta(hours=12)),
    ]
    lines = text_of(daybar(spans, now, ParisClock(), 78))
    assert lines[-1] == "now day   next: 20:00 night in 5 h 58 min"
    assert all(len(line) <= 78 for line in lines)
