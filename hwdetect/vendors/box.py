"""Rows of the boxed tables that most vendor tools print: `| 0  Name | bus | ... |`, two or three lines a device."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from hwdetect.text import MIB, known, mib, number, pci_address

_RULE = re.compile(r"^[\s+|*=_-]{3,}$")
_PAIR = re.compile(r"(\S+?)\s*/\s*(\S+?)(?=\s|$)")
_SIZES = re.compile(
    r"(\d+(?:\.\d+)?)\s*([KMGT]i?B|)\s*/\s*(\d+(?:\.\d+)?)\s*([KMGT]i?B|)(?![\w.%])(?!\s*W)", re.IGNORECASE
)
_WATTS = re.compile(r"(\d+(?:\.\d+)?|N/A|ERR!|-)\s*W?\s*/\s*(\d+(?:\.\d+)?|N/A|-)\s*W?\b", re.IGNORECASE)
_PERCENT = re.compile(r"(?<![\w.])(\d{1,3}(?:\.\d+)?)\s*%")
_SECTIONS = (("mig devices", "mig"), ("process", "processes"))


@dataclass
class Row:
    """One device's lines, each split into cells."""

    index: int
    title: str
    lines: list[list[str]] = field(default_factory=list)
    section: str = "devices"

    def cell(self, line: int, column: int) -> str:
        return self.lines[line][column].strip() if line < len(self.lines) and column < len(self.lines[line]) else ""

    @property
    def flat(self) -> list[str]:
        return [cell.strip() for cells in self.lines for cell in cells]

    @property
    def address(self) -> str | None:
        return next((found for cell in self.flat if (found := pci_address(cell))), None)

    def memory(self) -> tuple[int | None, int | None]:
        """Used and total bytes: the first `a / b` pair of sizes after the row's first line."""
        for cells in self.lines[1:]:
            for cell in cells:
                if found := sizes(cell):
                    return found
        return None, None


Starts = Callable[[list[str]], tuple[int, str] | None]
"""Index and title if these cells begin a device, else None."""


def cells_of(text: str) -> Iterator[tuple[str, list[str] | None]]:
    """Section and cells of every table line; None for a rule, which ends a row."""
    section = "devices"
    for line in text.splitlines():
        stripped = line.strip()
        if _RULE.match(stripped):
            yield section, None
            continue
        if not stripped.startswith("|"):
            continue
        cells = stripped.removeprefix("|").removesuffix("|").split("|")
        opening = cells[0].strip().lower()
        renamed = next((name for mark, name in _SECTIONS if opening.startswith(mark)), None)
        if renamed:
            section = renamed
        elif "bus-id" in stripped.lower() or "bus id" in stripped.lower():
            section = "devices"
        yield section, cells


def rows(text: str, starts: Starts, section: str = "devices", longest: int = 4) -> list[Row]:
    """Rows of one section. A second row with an index that was seen is dropped with its lines."""
    found: dict[int, Row] = {}
    current: Row | None = None
    for where, cells in cells_of(text):
        if cells is None or where != section:
            current = None
            continue
        opened = starts(cells)
        if opened:
            current = Row(*opened, section=where)
            found.setdefault(opened[0], current)
        if current is not None and len(current.lines) < longest:
            current.lines.append(cells)
    return list(found.values())


def sizes(cell: str) -> tuple[int, int] | None:
    """Used and total of `815MiB / 8192MiB`, `826/65536 MiB` or `26810/ 32768`: a bare number takes the other's unit."""
    found = _SIZES.search(cell)
    if not found:
        return None
    first, first_unit, second, second_unit = found.groups()
    if not (first_unit or second_unit):
        return None
    used = mib(first + (first_unit or second_unit))
    total = mib(second + (second_unit or first_unit))
    return (used, total) if used is not None and total is not None else None


def bare_sizes(cell: str) -> tuple[int | None, int | None]:
    """Used and total of a pair whose heading says MB; NA on either side is unknown."""
    found = _PAIR.search(cell)
    if not found:
        return None, None
    used, total = number(found.group(1)), number(found.group(2))
    return (int(used * MIB) if used is not None else None, int(total * MIB) if total is not None else None)


def watts(cell: str) -> tuple[float | None, float | None]:
    """Draw and limit of `97W / 250W`; either may be unknown."""
    found = _WATTS.search(cell)
    return (number(found.group(1)), number(found.group(2))) if found else (None, None)


def celsius(cell: str) -> float | None:
    """The temperature in a cell: a number followed by C."""
    for found in re.finditer(r"(?<![\w.])(\d{1,3}(?:\.\d+)?)\s*[°]?\s?[C℃c](?![a-zA-Z])", cell):
        return float(found.group(1))
    return None


def percent(cell: str) -> float | None:
    found = _PERCENT.search(cell)
    return float(found.group(1)) if found else None


def title_value(text: str, *keys: str) -> str | None:
    """The word after `Key:` anywhere in a table's title lines."""
    for key in keys:
        found = re.search(rf"(?<![\w-]){re.escape(key)}\s*[:\s]\s*([^\s|]+)", text)
        if found and known(found.group(1)):
            return known(found.group(1))
    return None
