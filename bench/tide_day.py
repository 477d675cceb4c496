"""A day with ten times the night's requests: when they come, how long they are, and what became of them."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from bench.percentile import percentile

TIDE = 10.0  # day to night
DAY_S = 60.0  # the shortest that a schedule rule may last


class Got(Protocol):
    """What one request got. ttft_s None: it got no token."""

    @property
    def status(self) -> int: ...
    @property
    def tokens(self) -> int: ...
    @property
    def ttft_s(self) -> float | None: ...
    @property
    def total_s(self) -> float: ...
    @property
    def whole(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Arrival:
    at_s: float
    prompt_words: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Day:
    """Where the night ends and begins again."""

    night_s: float
    day_s: float = DAY_S

    @property
    def length_s(self) -> float:
        return 2 * self.night_s + self.day_s

    def phase(self, at_s: float) -> str:
        return "day" if self.night_s <= at_s < self.night_s + self.day_s else "night"


@dataclass(frozen=True, slots=True)
class Answered:
    arrival: Arrival
    got: Got


def read_trace(path: Path) -> list[tuple[float, int, int]]:
    """(seconds since the one before, context tokens, generated tokens) of each request."""
    found: list[tuple[float, int, int]] = []
    before: datetime | None = None
    with path.open(newline="") as lines:
        for row in csv.DictReader(lines):
            at = datetime.fromisoformat(row["TIMESTAMP"][:26])
            gap_s = 0.0 if before is None else max(0.0, (at - before).total_seconds())
            found.append((gap_s, int(row["ContextTokens"]), int(row["GeneratedTokens"])))
            before = at
    return found


@dataclass(frozen=True, slots=True)
class Lengths:
    """How a trace's lengths become those of a smaller machine."""

    prompt_shrink: float
    output_shrink: float
    longest_prompt: int = 256  # words
    longest_output: int = 96

    def prompt(self, context: int) -> int:
        return min(self.longest_prompt, max(8, round(context / self.prompt_shrink)))

    def output(self, generated: int) -> int:
        return min(self.longest_output, max(4, round(generated / self.output_shrink)))


def tide_of(trace: Sequence[tuple[float, int, int]], day: Day, night_rate: float, lengths: Lengths) -> list[Arrival]:
    """The trace's gaps, stretched to `night_rate` requests a second at night and ten times as many by day."""
    expected = max(2, round(night_rate * (2 * day.night_s + TIDE * day.day_s)))
    used = [gap for gap, _, _ in trace[1 : expected + 1]]  # a trace has quiet and busy stretches of its own
    mean_gap_s = sum(used) / len(used)
    arrivals, at_s = [], 0.0
    for gap_s, context, generated in trace:
        rate = night_rate * (TIDE if day.phase(at_s) == "day" else 1.0)
        step_s = gap_s / mean_gap_s / rate
        crosses_s = at_s + step_s
        if day.phase(at_s) == "night" and at_s < day.night_s < crosses_s:  # the rest of the gap passes at day's pace
            crosses_s = day.night_s + (crosses_s - day.night_s) / TIDE
        at_s = crosses_s
        if at_s >= day.length_s:
            break
        arrivals.append(Arrival(at_s, lengths.prompt(context), lengths.output(generated)))
    return arrivals


def figures(answers: Sequence[Answered], day: Day) -> dict[str, Any]:
    """By phase: tokens of whole answers a second until the phase's last one ended, and what their readers saw.

    A request is of the phase that it was sent in, whenever its answer ends: what the day left undone makes the second
    night's requests wait, but is no part of the night's figures itself.
    """
    found: dict[str, Any] = {"requests": len(answers), "lost": sum(not is_whole(one) for one in answers)}
    for phase, begins_s, lasts_s in (("night", 0.0, 2 * day.night_s), ("day", day.night_s, day.day_s)):
        mine = [one for one in answers if day.phase(one.arrival.at_s) == phase and is_whole(one)]
        if not mine:
            continue
        ended_s = max(one.arrival.at_s + one.got.total_s for one in mine)
        span_s = lasts_s if phase == "night" else max(lasts_s, ended_s - begins_s)
        waits = [one.got.ttft_s for one in mine if one.got.ttft_s is not None]
        paces = [_pace_ms(one.got) for one in mine if one.got.tokens > 1 and one.got.ttft_s is not None]
        found[phase] = {
            "requests": len(mine),
            "goodput_tok_s": round(sum(one.got.tokens for one in mine) / span_s, 2),
            "ttft_p50_s": round(median(waits), 3),
            "ttft_p99_s": round(percentile(waits, 0.99), 3),
            "tpot_p50_ms": round(median(paces), 2),
            "tpot_p99_ms": round(percentile(paces, 0.99), 2),
        }
    return found


def steady_rate(answers: Sequence[Answered]) -> float:
    """Requests a second that end while all places are taken: the middle half of a crowd that came at once."""
    ended = sorted(one.arrival.at_s + one.got.total_s for one in answers)
    first, last = len(ended) // 4, 3 * len(ended) // 4
    return (last - first) / (ended[last] - ended[first])


def held(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What the scheduled run must hold against the two others, and whether it does; empty without all three."""
    by_run = {run["run"]: run for run in runs}
    if not {"latency", "throughput", "scheduled"} <= by_run.keys():
        return {}
    mine = by_run["scheduled"]
    peak = mine["day"]["goodput_tok_s"] / by_run["throughput"]["day"]["goodput_tok_s"]
    pace = mine["night"]["tpot_p50_ms"] / by_run["latency"]["night"]["tpot_p50_ms"]
    return {
        "day_goodput_of_throughput_plan": round(peak, 3),  # must be at least 0.95
        "night_pace_of_latency_plan": round(pace, 3),  # must be at most 1.05
        "held": peak >= 0.95 and pace <= 1.05 and not any(run["lost"] for run in runs),
    }


def is_whole(one: Answered) -> bool:
    return one.got.status == 200 and one.got.whole


def _pace_ms(got: Got) -> float:
    assert got.ttft_s is not None
    return 1e3 * (got.total_s - got.ttft_s) / (got.tokens - 1)
