"""A day as a bar: which plan holds when, where now is, and what comes next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from admin_tui.answers import Span
from admin_tui.clock import Clock
from admin_tui.figures import duration
from admin_tui.look import Cell, Line, Tone, plain


@dataclass(frozen=True, slots=True)
class Day:
    """From one local midnight to the next: 23 or 25 hours long where clocks change."""

    begin: datetime
    columns: int

    @property
    def end(self) -> datetime:
        return self.begin + timedelta(days=1)

    def column(self, at: datetime) -> int:
        begin_s, end_s = self.begin.timestamp(), self.end.timestamp()
        share = (at.timestamp() - begin_s) / (end_s - begin_s)
        return round(max(0.0, min(1.0, share)) * self.columns)


def daybar(spans: Sequence[Span], as_of: datetime, clock: Clock, width: int) -> list[Line]:
    if not spans:
        return [plain("no plan is active and no rule is set. Add one: bayard schedule add")]
    here = clock.local(as_of)
    day = Day(here.replace(hour=0, minute=0, second=0, microsecond=0), max(24, min(72, width - 2)))
    pointer = " " * min(day.columns - 1, day.column(as_of)) + f"^ {here:%H:%M}"
    return [
        plain(_hours(day)),
        plain(_bar(spans, day)),
        [Cell(pointer, Tone.DIM)],
        plain(_next(spans, as_of, clock)),
    ]


def _hours(day: Day) -> str:
    step = 3 if day.columns >= 48 else 6
    marks = [" "] * (day.columns + 2)
    for hour in range(0, 24, step):
        at = day.column(day.begin + timedelta(hours=hour))
        marks[at : at + 2] = list(f"{hour:02}")
    marks[day.columns : day.columns + 2] = list("24")
    return "".join(marks)


def _bar(spans: Sequence[Span], day: Day) -> str:
    bar = [" "] * day.columns
    for span in spans:
        first, last = day.column(span.starts_at), day.column(span.ends_at)
        if last - first > 1:
            name = f"[{span.plan or 'no plan'}"[: last - first - 1]
            bar[first:last] = list(name.ljust(last - first - 1) + "]")
        elif last > first:
            bar[first] = "|"
    return "".join(bar)


def _next(spans: Sequence[Span], as_of: datetime, clock: Clock) -> str:
    current = next((span for span in spans if span.starts_at <= as_of < span.ends_at), None)
    holds = f"now {current.plan or 'no plan'}" if current else ""
    if current and current.reason:
        holds += f" ({current.reason})"
    coming = sorted((span for span in spans if span.starts_at > as_of), key=lambda span: span.starts_at)
    if not coming:
        return f"{holds}   next: no change is planned today".strip()
    wait_s = (coming[0].starts_at - as_of).total_seconds()
    then = f"next: {clock.local(coming[0].starts_at):%H:%M} {coming[0].plan or 'no plan'} in {duration(wait_s)}"
    return f"{holds}   {then}".strip()
