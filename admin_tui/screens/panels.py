"""What a panel shows when its own endpoint has no answer: the others stay live."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from admin_tui.errors import Refused
from admin_tui.feed import Snapshot
from admin_tui.look import Cell, Line, Look, Tone, plain
from admin_tui.widgets.panel import Lines, waiting

T = TypeVar("T", bound=msgspec.Struct)


def panel_of(snapshot: Snapshot, kind: type[T], show: Callable[[T, int, Look], Sequence[Line]]) -> Lines:
    """The answer as lines, else the error, else that it is awaited."""
    answer, error = snapshot.get(kind), snapshot.error(kind)
    if isinstance(error, Refused):  # an answer of before would pass for one of now
        return lambda *_: refusal_lines(error)
    if answer is not None:
        return lambda width, look: show(answer, width, look)
    if error is not None:
        return lambda *_: [[Cell("not known: ", Tone.DIM), Cell(error.message)], plain(error.hint)]
    return waiting


def refusal_lines(error: Refused) -> list[Line]:
    if error.forbidden:
        return [[Cell("FORBIDDEN  ", Tone.WARN), Cell(error.message)], plain(error.hint)]
    return [[Cell("ERROR  ", Tone.BAD), Cell(str(error))]]
