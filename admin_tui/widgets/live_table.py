"""A table with a cursor that is brought up to date cell by cell, so that cursor and scroll stay where they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.widgets import DataTable

from admin_tui.grid import Column, Row, fitting
from admin_tui.look import Cell, Look


class LiveTable(DataTable[Text]):
    """Columns are dropped by their priority when the width does not suffice."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "cursor_down", "Down", show=False, id="table.down", tooltip="Go one row down"),
        Binding("k", "cursor_up", "Up", show=False, id="table.up", tooltip="Go one row up"),
        Binding("g", "scroll_top", "Top", show=False, id="table.top", tooltip="Go to the first row"),
        Binding("G", "scroll_bottom", "Bottom", show=False, id="table.bottom", tooltip="Go to the last row"),
    ]

    def __init__(self, columns: Sequence[Column], *, id: str) -> None:  # noqa: A002 - Textual's own name for it
        super().__init__(cursor_type="row", id=id, cell_padding=1)
        self._all_columns = list(columns)
        self._kept: list[Column] = []
        self._rows: dict[str, Row] = {}

    @property
    def selected(self) -> str | None:
        """The key of the row under the cursor."""
        if not self.row_count or not 0 <= self.cursor_row < self.row_count:
            return None
        return self.ordered_rows[self.cursor_row].key.value

    def sync(self, rows: Sequence[Row]) -> None:
        """Show these rows. Only what changed is touched; new rows are appended, gone rows removed."""
        fresh = {row.key: row for row in rows}
        if not self._kept:  # not laid out yet: the first resize builds it
            self._rows = fresh
            return None
        if [key for key in self._rows if key in fresh] + [key for key in fresh if key not in self._rows] != list(fresh):
            return self._rebuild(fresh)
        selected, gone = self.selected, [key for key in self._rows if key not in fresh]
        for key in gone:
            self.remove_row(key)
        for key, row in fresh.items():
            old = self._rows.get(key)
            if old is None:
                self.add_row(*(self._paint(row, column) for column in self._kept), key=key)
                continue
            for column in self._kept:
                if old.cell(column) != row.cell(column):
                    self.update_cell(key, column.key, self._paint(row, column))
        self._rows = fresh
        if gone and selected in fresh:
            self.move_cursor(row=self.get_row_index(selected))
        return None

    def on_resize(self, event: events.Resize) -> None:
        kept = fitting(self._all_columns, event.size.width - 2)
        if kept != self._kept:
            self._kept = kept
            self._rebuild(self._rows)

    def repaint(self) -> None:
        """After a change of theme."""
        self._rebuild(self._rows)

    def _rebuild(self, rows: dict[str, Row]) -> None:
        selected = self.selected
        self.clear(columns=True)
        for column in self._kept:
            self.add_column(
                Text(column.title.rjust(column.width) if column.right else column.title),
                width=column.width,
                key=column.key,
            )
        for key, row in rows.items():
            self.add_row(*(self._paint(row, column) for column in self._kept), key=key)
        self._rows = rows
        if selected in rows and self._kept:
            self.move_cursor(row=self.get_row_index(selected))

    def _paint(self, row: Row, column: Column) -> Text:
        look: Look = getattr(self.app, "look", Look())
        cell = row.cell(column)
        return look.paint([Cell(look.fit(cell.text, column.width, right=column.right), cell.tone)])
