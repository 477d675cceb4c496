"""A page of text above the screen: help, and the messages so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static


class ReaderScreen(ModalScreen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark", "dismiss", "back", id="reader.back", tooltip="Back to the screen"),
    ]

    def __init__(self, title: str, lines: Sequence[str]) -> None:
        super().__init__()
        self._title, self._lines = title, lines

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="page"):
            yield Static(self._title, markup=False, id="title")
            yield Static("\n".join(self._lines), markup=False)
            yield Static("Esc goes back", markup=False, id="back")

    def on_mount(self) -> None:
        self.query_one("#page").focus()
