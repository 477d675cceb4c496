"""MachineWatch: the machine as it is now, asked at most every few seconds, and every change of it an event."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import structlog

from daemon.events import EventLog
from hwdetect.changes import Change, changes
from hwdetect.detect import detect
from hwdetect.machine import Machine

FRESH_S = 5.0
LOOK_EVERY_S = 30.0  # with nobody asking

log = structlog.get_logger("bayard.machine")


class MachineWatch:
    """Looks in a thread; meanwhile the last picture is shown. Owner: the Appliance.

    look: makes the picture and may block
    """

    def __init__(
        self,
        state_dir: Path,
        events: EventLog,
        *,
        fresh_s: float = FRESH_S,
        look: Callable[[], Machine] | None = None,
    ) -> None:
        self._events = events
        self._fresh_s = fresh_s
        self._look = look or (lambda: detect(Path("/"), state_dir=state_dir))
        self._machine: Machine | None = None
        self._seen_mono = 0.0
        self._looking: asyncio.Task[Machine] | None = None

    @property
    def last(self) -> Machine | None:
        """The last picture, however old; None before the first."""
        return self._machine

    async def current(self) -> Machine:
        """Blocks: for the first picture only."""
        stale = time.monotonic() - self._seen_mono > self._fresh_s
        if self._looking is None and (self._machine is None or stale):
            self._looking = asyncio.create_task(self._refresh(), name="machine watch")
        if self._machine is None:
            assert self._looking is not None
            return await asyncio.shield(self._looking)
        return self._machine

    async def rescan(self) -> Machine:
        """Look now, however fresh the picture is. Blocks: for the vendors' tools."""
        if self._looking is None:
            self._looking = asyncio.create_task(self._refresh(), name="machine watch")
        return await asyncio.shield(self._looking)

    async def follow(self) -> None:
        """Look again and again, so that a device lost or back is told without anyone asking. Runs until cancelled."""
        while True:
            await self.current()
            if self._looking is not None:
                await asyncio.shield(self._looking)
            await asyncio.sleep(LOOK_EVERY_S)

    async def _refresh(self) -> Machine:
        try:
            machine = await asyncio.to_thread(self._look)
        finally:
            self._looking = None
        before, self._machine = self._machine, machine
        self._seen_mono = time.monotonic()
        for change in changes(before, machine) if before is not None else ():
            self._tell(change)
        return machine

    def _tell(self, change: Change) -> None:
        log.warning(str(change.kind), subject=change.subject, before=change.before, after=change.after)
        self._events.publish("hardware", change.subject, change.before, change.after, change.reason or change.kind)
