"""The list of screens with the number of faults on each, and the host below it; a one-line strip where it is narrow."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from admin_tui.answers import Host
from admin_tui.attention import Fault, Severity
from admin_tui.figures import duration, percent
from admin_tui.look import Cell, Line, Tone

WIDTH = 19


@dataclass(frozen=True, slots=True)
class Place:
    """A screen as the operator finds it: the key that leads there, its name among modes, its title."""

    key: str
    mode: str
    title: str


PLACES = (
    Place("1", "overview", "Overview"),
    Place("3", "models", "Models & plans"),
    Place("4", "workers", "Workers"),
)


def rail(current: str, faults: list[Fault], host: Host | None) -> list[Line]:
    lines: list[Line] = [[]]
    counts = _counts(faults)
    for place in PLACES:
        mark = f"!{counts[place.mode]}" if counts[place.mode] else ""
        name = f"{'>' if place.mode == current else ' '}{place.key} {place.title}"
        tone = Tone.STRONG if place.mode == current else Tone.PLAIN
        lines.append([Cell(f"{name:<{WIDTH - len(mark)}}"[: WIDTH - len(mark)], tone), Cell(mark, _mark_tone(faults))])
    if host:
        lines += [[], [Cell(" Host", Tone.STRONG)], *([Cell(f" {text}")] for text in _host(host))]
    return lines


def strip(current: str, faults: list[Fault]) -> Line:
    cells: list[Cell] = []
    counts = _counts(faults)
    for place in PLACES:
        mark = f"!{counts[place.mode]}" if counts[place.mode] else ""
        here = place.mode == current
        text = f"{'>' if here else ' '}{place.key} {place.title}{mark}"
        cells.append(Cell(f"{text}  ", Tone.STRONG if here else Tone.PLAIN))
    return cells


def _counts(faults: list[Fault]) -> Counter[str]:
    counts = Counter(fault.screen for fault in faults if fault.screen != "overview")
    counts["overview"] = len(faults)
    return counts


def _mark_tone(faults: list[Fault]) -> Tone:
    return Tone.BAD if any(fault.severity is Severity.FAIL for fault in faults) else Tone.WARN


def _host(host: Host) -> list[str]:
    memory = None
    if host.memory_total_bytes and host.memory_available_bytes is not None:
        memory = 1 - host.memory_available_bytes / host.memory_total_bytes
    disk = None
    if host.disk_total_bytes and host.disk_free_bytes is not None:
        disk = 1 - host.disk_free_bytes / host.disk_total_bytes
    return [
        f"up {duration(host.uptime_s)}",
        f"CPU {percent(host.cpu_used)}",
        f"RAM {percent(memory)}",
        f"disk {percent(disk)}",
    ]
