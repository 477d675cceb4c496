"""Columns leave in the order that was promised, and every line is as wide as the screen allows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from admin_tui.grid import Column, Row, fitting, lines
from admin_tui.look import Cell, Look, width_of

COLUMNS = (Column("id", "id", 6, 0), Column("b", "b", 10, 2), Column("c", "c", 8, 1), Column("state", "state", 5, 0))


def test_fitting_when_narrower_drops_highest_priority_number_first() -> None:
    kept = [[c.key for c in fitting(COLUMNS, width)] for width in (35, 34, 22, 10)]
    assert kept == [["id", "b", "c", "state"], ["id", "c", "state"], ["id", "state"], ["id", "state"]]


def test_lines_when_a_cell_is_absent_show_unknown() -> None:
    shown = lines(COLUMNS, [Row("r", {"id": Cell("w1")})], 40, Look())
    assert "".join(cell.text for cell in shown[1]).split() == ["w1", "-", "-", "-"]


@given(st.text(max_size=60), st.integers(1, 40), st.booleans())
def test_fit_is_exactly_the_width_in_cells(text: str, width: int, right: bool) -> None:
    assert cell_len(Look().fit(text, width, right=right)) == width


@given(st.text(max_size=80), st.integers(20, 60))
def test_lines_are_never_wider_than_the_screen(text: str, width: int) -> None:
    for line in lines(COLUMNS, [Row("r", {"id": Cell(text), "state": Cell(text)})], width, Look()):
        assert width_of(line) <= width
