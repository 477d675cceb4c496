"""Checks of the box: each with a stable id, three seconds, a severity, and the command that would fix what is wrong."""

from __future__ import annotations

import difflib
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from hwdetect.machine import Machine

LIMIT_S = 3.0


class Verdict(StrEnum):
    OK = "ok"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


EXIT_STATUS = {Verdict.OK: 0, Verdict.INFO: 0, Verdict.WARNING: 1, Verdict.ERROR: 2}


@dataclass(frozen=True, slots=True)
class Context:
    """What checks look at. Ports are only those that must be free: none where a daemon holds them already."""

    machine: Machine
    state_dir: Path | None = None
    free_ports: tuple[tuple[str, int], ...] = ()  # address and port


@dataclass(frozen=True, slots=True)
class Finding:
    verdict: Verdict
    text: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """`look` returns what it finds wrong, or what there is to say; no finding means ok."""

    id: str
    title: str
    look: Callable[[Context], Iterable[Finding]]


@dataclass(frozen=True, slots=True)
class Result:
    id: str
    title: str
    verdict: Verdict
    text: str
    fix: str
    took_ms: int


def run(
    context: Context, only: Iterable[str] = (), skip: Iterable[str] = (), *, checks: tuple[Check, ...] | None = None
) -> tuple[Result, ...]:
    """Run the checks in order; ids may name a group (`memory`) or one check (`memory.available`).

    Blocks: three seconds a check at most
    Raises: ValueError for an id that is none, naming the nearest
    """
    if checks is None:
        from hwdetect.checks import CHECKS  # the list imports this module's types

        checks = CHECKS
    chosen, left_out = tuple(only), tuple(skip)
    for name in (*chosen, *left_out):
        _require_known(name, checks)
    results: list[Result] = []
    for check in checks:
        if (not chosen or _named(check, chosen)) and not _named(check, left_out):
            results += _run_one(check, context)
    return tuple(results)


def worst(results: Iterable[Result]) -> Verdict:
    order = list(Verdict)
    return max((result.verdict for result in results), key=order.index, default=Verdict.OK)


def exit_status(results: Iterable[Result]) -> int:
    """0: nothing to do, 1: warnings, 2: errors."""
    return EXIT_STATUS[worst(results)]


def _named(check: Check, names: tuple[str, ...]) -> bool:
    return check.id in names or check.id.partition(".")[0] in names


def _require_known(name: str, checks: tuple[Check, ...]) -> None:
    known = [check.id for check in checks] + sorted({check.id.partition(".")[0] for check in checks})
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(f"there is no check {name!r}{hint}")


def _run_one(check: Check, context: Context) -> list[Result]:
    started = time.monotonic()
    findings: list[Finding] = []
    failure: list[str] = []

    def work() -> None:
        try:
            findings.extend(check.look(context))
        except Exception as error:  # noqa: BLE001 - the border of a check: one that fails must not hide the others
            failure.append(f"{type(error).__name__}: {error}")

    # A daemon thread: a check stuck in the kernel must not keep the command from ending
    thread = threading.Thread(target=work, name=f"check {check.id}", daemon=True)
    thread.start()
    thread.join(LIMIT_S)
    took_ms = int((time.monotonic() - started) * 1000)
    if thread.is_alive():
        text = f"did not end within {LIMIT_S:.0f} s"
        return [Result(check.id, check.title, Verdict.WARNING, text, "", took_ms)]
    if failure:
        text = f"could not be done: {failure[0]}"
        return [Result(check.id, check.title, Verdict.WARNING, text, "", took_ms)]
    if not findings:
        return [Result(check.id, check.title, Verdict.OK, "", "", took_ms)]
    return [Result(check.id, check.title, f.verdict, f.text, f.fix, took_ms) for f in findings]


def table(results: Iterable[Result]) -> str:
    """One line a result, its fix below it."""
    rows = list(results)
    width = max((len(row.id) for row in rows), default=0)
    lines: list[str] = []
    for row in rows:
        lines.append(f"{row.verdict.upper():<8}{row.id:<{width}}  {row.text or row.title}")
        if row.fix:
            lines.append(f"{'':<8}{'':<{width}}  fix: {row.fix}")
    return "\n".join(lines) + "\n"
