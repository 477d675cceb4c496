"""Unknown is never written as 0, nor 0 as unknown."""

from __future__ import annotations

import pytest

from admin_tui import figures


@pytest.mark.parametrize("write", [figures.count, figures.size, figures.percent, figures.millis, figures.duration])
def test_figure_when_unknown_is_a_dash_and_zero_is_a_number(write: object) -> None:
    assert callable(write)
    assert write(None) == "-"
    assert write(0).startswith("0")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(59, "59 s"), (269, "4 min 29 s"), (21_420, "5 h 57 min"), (3_553_200, "41 d 03 h"), (-5, "0 s")],
)
def test_duration_shows_its_two_largest_units(seconds: float, text: str) -> None:
    assert figures.duration(seconds) == text


def test_size_pair_uses_the_unit_of_the_larger() -> None:
    assert figures.size_pair(512 << 20, 2 << 30) == "0.5/2.0 GiB"
    assert figures.size_pair(None, 300 << 20) == "-/300 MiB"
    assert figures.size_pair(None, None) == "-"
