"""A titled block of text lines that repaints only when what it says has changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.text import Text
from textual import events
from textual.widgets import Static

from admin_tui.look import Cell, Line, Look, Tone, width_of

Lines = Callable[[int, Look], Sequence[Line]]  # (width in cells, look) -> lines


class Panel(Static):
    """Its content is a function of its width, so that a resize needs no new answer."""

    def __init__(self, title: str, *, id: str) -> None:  # noqa: A002 - Textual's own name for it
        super().__init__(markup=False, id=id)
        self._title = title
        self._lines: Lines = waiting
        self._shown: Text | None = None

    def show(self, title: str, lines: Lines) -> None:
        self._title, self._lines = title, lines
        self._repaint()

    def on_resize(self, _: events.Resize) -> None:
        self._repaint()

    def _repaint(self) -> None:
        width = self.size.width
        if not width:
            return
        look = self.app.look if hasattr(self.app, "look") else Look()
        text = look.paint_lines([title_line(self._title, width, look), *self._lines(width, look)])
        if self._shown is None or text.markup != self._shown.markup:
            self._shown = text
            self.update(text)


def title_line(title: str, width: int, look: Look) -> Line:
    head: list[Cell] = [Cell(look.rule * 2 + " ", Tone.DIM), Cell(title, Tone.STRONG), Cell(" ")]
    return [*head, Cell(look.rule * max(0, width - width_of(head)), Tone.DIM)]


def waiting(_: int, __: Look) -> Sequence[Line]:
    return [[Cell("asking the daemon ...", Tone.DIM)]]
