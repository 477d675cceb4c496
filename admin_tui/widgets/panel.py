"""A titled block of text lines that repaints only when what it says has changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.cells import cell_len
from rich.text import Text
from textual.geometry import Size
from textual.widget import Widget

from admin_tui.look import Cell, Line, Look, Tone, width_of

Lines = Callable[[int, Look], Sequence[Line]]  # (width in cells, look) -> lines


class Panel(Widget):
    """Its content is a function of its width, so that a resize needs no new answer."""

    def __init__(self, title: str, *, id: str) -> None:  # noqa: A002 - Textual's own name for it
        super().__init__(id=id)
        self._title = title
        self._lines: Lines = waiting
        self._shown: Text | None = None

    def show(self, title: str, lines: Lines) -> None:
        self._title, self._lines = title, lines
        fresh = self._text(self.size.width)
        if self._shown is None or not same(fresh, self._shown):
            self.refresh(layout=self._shown is None or len(fresh.plain) != len(self._shown.plain))

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return self._text(width).plain.count("\n") + 1

    def render(self) -> Text:
        self._shown = self._text(self.size.width)
        return self._shown

    def _text(self, width: int) -> Text:
        look: Look = getattr(self.app, "look", Look())
        return look.paint_lines([title_line(self._title, width, look), *self._lines(width, look)])


def same(one: Text, other: Text) -> bool:
    return one.plain == other.plain and one.spans == other.spans


def title_line(title: str, width: int, look: Look) -> Line:
    head: list[Cell] = [
        Cell(look.rule * 2 + " ", Tone.DIM),
        Cell(look.fit(title, min(cell_len(title), width - 4)), Tone.STRONG),
        Cell(" "),
    ]
    return [*head, Cell(look.rule * max(0, width - width_of(head)), Tone.DIM)]


def waiting(_: int, __: Look) -> Sequence[Line]:
    return [[Cell("asking the daemon ...", Tone.DIM)]]
