"""Telling systemd how the service is: ready, status, watchdog, stopping. Silent where systemd did not start it."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable

import structlog

STATUS_PERIOD_S = 1.0

log = structlog.get_logger("bayard.notify")


def notify(*lines: str) -> None:
    """Send lines such as READY=1 or STATUS=... to the service manager, if there is one."""
    path = os.environ.get("NOTIFY_SOCKET")
    if not path:
        return
    address = "\0" + path[1:] if path.startswith("@") else path
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            sock.setblocking(False)
            sock.sendto("\n".join(lines).encode(), address)
    except OSError as error:  # a manager that does not listen must not stop the service
        log.warning("notify_failed", error=str(error))


def watchdog_period_s() -> float | None:
    """How often to ping: a third of what the manager allows; None where it does not watch this process."""
    usec, pid = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", "")
    if not usec.isdigit() or int(usec) == 0 or (pid and pid != str(os.getpid())):
        return None
    return int(usec) / 3 / 1_000_000


async def keep_manager_informed(status: Callable[[], str], alive: Callable[[], bool]) -> None:
    """Send STATUS when it changes, and WATCHDOG=1 from the event loop itself while alive() holds.

    A loop that hangs sends nothing, and is then killed and started again.
    """
    period_s = watchdog_period_s()
    told = ""
    while True:
        lines = []
        text = status().replace("\n", " ")
        if text != told:
            told = text
            lines.append(f"STATUS={text}")
        if period_s is not None and alive():
            lines.append("WATCHDOG=1")
        if lines:
            notify(*lines)
        await asyncio.sleep(min(STATUS_PERIOD_S, period_s or STATUS_PERIOD_S))
