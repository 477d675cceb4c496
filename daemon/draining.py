"""The daemon's last service: nothing new is taken, and what runs may finish."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from daemon.app import Appliance

DRAIN_POLL_S = 0.02

log = structlog.get_logger("bayard")


async def drain(app: Appliance, hurry: asyncio.Event) -> int:
    """How many requests still ran when the grace was over, or hurry was set. Blocks: for stop_grace_s at most"""
    app.tenants.admission.draining = True
    await app.runner.stop()  # its requests are not waited for: they go on after the next start
    deadline = time.monotonic() + app.settings.workers.stop_grace_s
    while len(app.serving.live) and time.monotonic() < deadline:
        try:
            await asyncio.wait_for(hurry.wait(), DRAIN_POLL_S)
            break
        except TimeoutError:
            continue
    cut = len(app.serving.live)
    if cut:
        log.warning("drain_cut", requests=cut)
    return cut
