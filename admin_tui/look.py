"""Text with a meaning, and how it is painted. Screens say what a piece of text means; only here it gets a colour.

State is always a word as well: colour repeats it and is never alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

NAME_CELLS = 12
_measure = Console(width=80, no_color=True)  # Rich breaks lines by a console's rules; nothing is printed to this one


class Tone(StrEnum):
    PLAIN = "plain"
    GOOD = "good"
    WARN = "warn"
    BAD = "bad"
    DIM = "dim"
    STRONG = "strong"


@dataclass(frozen=True, slots=True)
class Cell:
    """A piece of text and what it means."""

    text: str
    tone: Tone = Tone.PLAIN


Line = Sequence[Cell]

# Each has a contrast of at least 4.5:1 against its theme's background.
_DARK = {Tone.GOOD: "#7fd88f", Tone.WARN: "#ffd166", Tone.BAD: "bold #ff8a80", Tone.DIM: "#a8a8a8", Tone.STRONG: "bold"}
_LIGHT = {
    Tone.GOOD: "#1b6e2d",
    Tone.WARN: "#7a4f00",
    Tone.BAD: "bold #a31515",
    Tone.DIM: "#595959",
    Tone.STRONG: "bold",
}


@dataclass(frozen=True, slots=True)
class Look:
    """What the terminal allows."""

    dark: bool = True
    unicode: bool = True

    @property
    def rule(self) -> str:
        return "─" if self.unicode else "-"

    @property
    def more(self) -> str:
        return "…" if self.unicode else "~"

    def paint(self, line: Iterable[Cell]) -> Text:
        tones = _DARK if self.dark else _LIGHT
        text = Text(no_wrap=True, overflow="crop", end="")
        for cell in line:
            text.append(cell.text, tones.get(cell.tone))
        return text

    def paint_lines(self, lines: Iterable[Line]) -> Text:
        text = Text("\n", no_wrap=True, overflow="crop", end="").join(self.paint(line) for line in lines)
        text.no_wrap, text.overflow = True, "crop"
        return text

    def fit(self, text: str, width: int, *, right: bool = False) -> str:
        """Exactly `width` cells wide: padded, or cut with a mark. Wide characters count as two cells."""
        have = cell_len(text)
        if have > width:
            return set_cell_size(text, width - 1) + self.more if width > 0 else ""
        return " " * (width - have) + text if right else text + " " * (width - have)


def named(name: str, text: str, width: int, tone: Tone = Tone.PLAIN) -> list[Line]:
    """A name and its text beside it, broken at words; long words are cut where they have to be."""
    room = max(10, width - NAME_CELLS)
    pieces = [piece.plain for piece in Text(text).wrap(_measure, room)] or [""]
    return [
        [Cell(f"{name if number == 0 else '':<{NAME_CELLS}}", Tone.DIM), Cell(piece.rstrip(), tone)]
        for number, piece in enumerate(pieces)
    ]


def plain(text: str) -> list[Cell]:
    return [Cell(text)]


def width_of(line: Line) -> int:
    return sum(cell_len(cell.text) for cell in line)
