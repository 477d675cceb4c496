"""A module of the engine run in a process of its own for a command, which shows how far it is."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import IO, Any

from daemon.commands.progress import ProgressLine
from engine.errors import HardwareError, error_of

_STOP_S = 10.0


def run_module(module: str, words: list[str], progress_on_stderr: bool = False) -> dict[str, Any]:
    """The last JSON object that it printed. Ctrl-C reaches it too.

    Blocks: until it has ended
    Raises: the BayardError that it printed; HardwareError when it died without one
    """
    line = ProgressLine()
    last: dict[str, Any] = {}
    errors = subprocess.PIPE if progress_on_stderr else None
    with subprocess.Popen(
        [sys.executable, "-m", module, *words], stdout=subprocess.PIPE, stderr=errors, text=True
    ) as p:
        try:
            told = p.stderr if progress_on_stderr else p.stdout
            assert told is not None
            last = _follow(told, line)
            if progress_on_stderr:
                assert p.stdout is not None
                last = _last(p.stdout.read())
            status = p.wait()
        except KeyboardInterrupt:
            p.send_signal(signal.SIGINT)
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
