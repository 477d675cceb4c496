"""The tide: the same requests for every run, figures by phase, and a picture of them."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from bench.http_clients import Stream
from bench.report import tide_section
from bench.tide_day import TIDE, Answered, Arrival, Day, Lengths, figures, read_trace, tide_of
from bench.tide_plot import plot

TRACE = [(0.0, 400, 40)] + [(0.5 + (n % 7) / 10, 300 + n, 20 + n % 50) for n in range(2000)]


def test_day_has_ten_times_the_nights_requests() -> None:
    day = Day(100.0, 100.0)
    arrivals = tide_of(TRACE, day, 0.5, Lengths(10.0, 10.0, 64, 32))
    by_day = sum(day.phase(one.at_s) == "day" for one in arrivals)
    by_night = len(arrivals) - by_day
    assert by_day / day.day_s == pytest.approx(TIDE * by_night / (2 * day.night_s), rel=0.15)
    assert [one.at_s for one in arrivals] == sorted(one.at_s for one in arrivals)
    assert arrivals[-1].at_s < day.length_s
    assert all(4 <= one.output_tokens <= 32 for one in arrivals)


def test_trace_is_read_as_gaps(tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "trace.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
    )
    (first, second) = read_trace(path)
    assert first == (0.0, 374, 44)
    assert second[0] == pytest.approx(4.314579)


def answered(
    at_s: float, *, tokens: int = 11, whole: bool = True, ttft_s: float = 0.5, total_s: float = 1.5
) -> Answered:
    return Answered(
        Arrival(at_s, 10, tokens), Stream(200 if whole else 503, tokens if whole else 0, ttft_s, total_s, whole)
    )


def test_figures_count_what_is_lost_and_tell_phases_apart() -> None:
    day = Day(10.0, 10.0)
    found = figures([answered(1.0), answered(12.0, total_s=2.5), answered(15.0), answered(16.0, whole=False)], day)
    assert (found["requests"], found["lost"]) == (4, 1)
    assert found["night"]["goodput_tok_s"] == pytest.approx(11 / 20, abs=0.01)
    assert found["night"]["tpot_p50_ms"] == pytest.approx(100.0)
    assert found["day"]["requests"] == 2
    assert found["day"]["tpot_p50_ms"] == pytest.approx(150.0)


def test_plot_and_report_show_every_run_and_move() -> None:
    move = {"at_s": 25.0, "how": "load", "gap_s": 0.0, "to": "32 streams", "reason": "a < b"}
    day = Day(10.0, 60.0)
    answers = [answered(1.0), answered(12.0)]
    runs = []
    for name, moves in (("latency", []), ("throughput", []), ("scheduled", [move])):
        runs.append({"run": name, **figures(answers, day), "moves": moves, "ended": [[2.0, 11], [13.0, 11]]})
    drawn = plot(runs, [1.0, 12.0], day.length_s)
    root = ET.fromstring(drawn)
    assert sum(element.tag.endswith("polyline") for element in root.iter()) == 3
    assert "a &lt; b" in drawn
    origin = {
        "machine": "M", "commit": "abc", "measured_at": "2026-01-02", "model": "m.gguf",
        "opts": {"day_s": 60.0, "tide": 10.0},
    }  # fmt: skip
    text = tide_section([origin, *runs])
    assert "| scheduled | 0.2 (1.00×) |" in text
    assert "| scheduled | 25 s | load | 0.00 s | 32 streams |" in text
