"""Progress of long work on a terminal: one line that is rewritten, or a line now and then where nobody watches."""

from __future__ import annotations

import sys
import time
from typing import Any

from daemon.commands.client import AdminClient
from daemon.commands.printable import printable
from engine.errors import error_of

_POLL_S = 0.2
_WIDTH = 78


class ProgressLine:
    """Owner: one command. Writes to stderr, so that what a command prints stays clean."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._shown = ""
        self._last_mono = 0.0
        self._last_key: tuple[str, int] = ("", -1)

    def show(self, stage: str, file: str, done_bytes: int, total_bytes: int) -> None:
        share = 100 * done_bytes // total_bytes if total_bytes else 0
        amount = f" {done_bytes / 2**20:,.0f} of {total_bytes / 2**20:,.0f} MiB ({share} %)" if total_bytes else ""
        text = f"{stage} {printable(file)}{amount}"
        now = time.monotonic()
        if self._live:
            if now - self._last_mono >= 0.1 or done_bytes == total_bytes:
                self._last_mono = now
                self._shown = text[:_WIDTH]
                sys.stderr.write(f"\r\x1b[K{self._shown}")
                sys.stderr.flush()
        elif (stage, share // 25) != self._last_key:
            self._last_key = (stage, share // 25)
            sys.stderr.write(text + "\n")
            sys.stderr.flush()

    def clear(self) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._shown = ""


def follow(client: AdminClient, operation: dict[str, Any]) -> dict[str, Any]:
    """Wait for an operation of the daemon, showing how far it is; Ctrl-C cancels it there too.

    Raises: the BayardError that it ended with.
    """
    line = ProgressLine()
    try:
        while operation["ended_at"] is None:
            progress = operation["progress"]
            if progress is not None:
                line.show(progress["stage"], progress["file"], progress["done_bytes"], progress["total_bytes"])
            time.sleep(_POLL_S)
            operation = client.get(f"operations/{operation['id']}")["item"]
    except KeyboardInterrupt:
        client.post(f"operations/{operation['id']}/cancel")
        raise
    finally:
        line.clear()
    if operation["error"] is not None:
        told = operation["error"]
        raise error_of(told["code"], told["message"], told["hint"])
    result: dict[str, Any] = operation["result"]
    return result
