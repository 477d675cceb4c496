"""Columns that know what may be left out: the same description serves the text grids and the tables with a cursor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from admin_tui.look import Cell, Line, Look, Tone

GAP = 2


@dataclass(frozen=True, slots=True)
class Column:
    """priority 0 always stays; the highest numbers go first when the screen is narrow. The last column may stretch."""

    key: str
    title: str
    width: int
    priority: int = 1
    right: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """key says which thing it is, across refreshes; cells are by column key, and one that is absent is unknown."""

    key: str
    cells: Mapping[str, Cell]

    def cell(self, column: Column) -> Cell:
        return self.cells.get(column.key, Cell("-"))


def fitting(columns: Sequence[Column], width: int) -> list[Column]:
    """Those that fit, in their order; columns of priority 0 stay even if they do not."""
    kept = list(columns)
    for column in sorted(columns, key=lambda c: -c.priority):
        if column.priority == 0 or total_width(kept) <= width:
            break
        kept.remove(column)
    return kept


def total_width(columns: Sequence[Column]) -> int:
    return sum(column.width for column in columns) + GAP * max(0, len(columns) - 1)


def lines(columns: Sequence[Column], rows: Sequence[Row], width: int, look: Look) -> list[Line]:
    """A title line and one line a row."""
    kept = fitting(columns, width)
    widths = [column.width for column in kept]
    widths[-1] = max(widths[-1], width - total_width(kept[:-1]) - GAP * (len(kept) > 1))
    title = "  ".join(look.fit(column.title, w, right=column.right) for column, w in zip(kept, widths, strict=True))
    found: list[Line] = [[Cell(title, Tone.DIM)]]
    for row in rows:
        line: list[Cell] = []
        for column, column_width in zip(kept, widths, strict=True):
            cell = row.cell(column)
            line += [Cell(look.fit(cell.text, column_width, right=column.right), cell.tone), Cell(" " * GAP)]
        found.append(line[:-1])
    return found
