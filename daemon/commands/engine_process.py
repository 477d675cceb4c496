"""A module of the engine run in a process of its own for a command, which shows how far it is."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import IO, Any, NoReturn

from daemon.commands.progress import ProgressLine
from engine.errors import HardwareError, error_of

_STOP_S = 10.0


def run_module(module: str, words: list[str], progress_on_stderr: bool = False) -> dict[str, Any]:
    """The last JSON object that it printed. What ends this process stops it.

    It is of a group of its own: a terminal's Ctrl-C would come in the midst of its imports, for it to tell a trace.

    Blocks: until it has ended; killed if it does not stop in time
    Raises: the BayardError that it printed; HardwareError when it died without one; SystemExit, see told_to_end
    """
    line = ProgressLine()
    last: dict[str, Any] = {}
    errors = subprocess.PIPE if progress_on_stderr else None
    command = [sys.executable, "-m", module, *words]
    with (
        told_to_end(),
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, process_group=0) as p,
    ):
        try:
            told = p.stderr if progress_on_stderr else p.stdout
            assert told is not None
            last = _follow(told, line)
            if progress_on_stderr:
                assert p.stdout is not None
                last = _last(p.stdout.read())
            status = p.wait()
        except (KeyboardInterrupt, SystemExit):
            p.terminate()
            with suppress(subprocess.TimeoutExpired):
                p.wait(_STOP_S)
            raise
        finally:
            line.clear()
            if p.poll() is None:
                p.kill()
    if "error" in last:
        error = last["error"]
        raise error_of(error["code"], error["message"], error["hint"])
    if status != 0 or not last:
        raise HardwareError(f"{module} ended with status {status}.", "`bayard doctor` checks the installation.")
    return last


@contextmanager
def told_to_end() -> Iterator[None]:
    """SIGTERM and SIGHUP raise SystemExit meanwhile, so that what is open is closed and children are stopped.

    Only in the main thread; a signal that is ignored stays so, as after nohup.
    """
    numbers = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, _end)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def _end(number: int, _: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def _follow(lines: IO[str], line: ProgressLine) -> dict[str, Any]:
    last: dict[str, Any] = {}
    for text in lines:
        found = _last(text)
        if "stage" in found:
            line.show(f"{found['stage']}: {found['done']:,} of {found['total']:,}", "", 0, 0)
        elif found:
            last = found
        else:
            line.clear()
            print(text.rstrip(), file=sys.stderr)
    return last


def _last(text: str) -> dict[str, Any]:
    """The object on the last line; {} where there is none."""
    rows = text.strip().splitlines()
    try:
        found = json.loads(rows[-1]) if rows else {}
    except json.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}
