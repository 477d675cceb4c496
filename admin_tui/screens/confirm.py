"""The dialog before a write: what would happen, the command that does the same, and Cancel first."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, Static


@dataclass(frozen=True, slots=True)
class Question:
    """A write that waits for its yes. path and body are the POST it stands for."""

    title: str
    effects: tuple[str, ...]
    command: str
    path: str
    button: str
    body: dict[str, object] = field(default_factory=dict)


class ConfirmScreen(ModalScreen[bool]):
    """Answers True only to its second button; Escape and Enter at the start both cancel."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "cancel", "cancel", id="confirm.cancel", tooltip="Change nothing"),
    ]

    def __init__(self, question: Question) -> None:
        super().__init__()
        self.question = question

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog"):
            yield Static(self.question.title, markup=False, id="title")
            for effect in self.question.effects:
                yield Static(effect, markup=False, classes="effect")
            yield Static(f"The same by command: {self.question.command}", markup=False, id="command")
            with Horizontal(id="buttons"):
                yield Button("Cancel", id="cancel")
                yield Button(self.question.button, id="yes", variant="warning")

    def on_mount(self) -> None:
        self.query_one("#cancel").focus()

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "yes")

    def action_cancel(self) -> None:
        self.dismiss(False)
