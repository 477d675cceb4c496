"""MachineWatch: the machine as it is now, asked at most every few seconds, and every change of it an event."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import structlog

from daemon.events import EventLog
from hwdetect.changes import Change, changes
from hwdetect.detect import detect
from hwdetect.machine import Accelerator, Machine

FRESH_S = 5.0
LOOK_EVERY_S = 30.0  # with nobody asking
SAMPLE_EVERY_S = 25.0
KEPT_SAMPLES = 720  # six hours

log = structlog.get_logger("bayard.machine")


@dataclass(frozen=True, slots=True)
class Sample:
    """What one accelerator showed at a moment. None: its tool did not say."""

    at: datetime
    utilisation_percent: float | None
    memory_used_bytes: int | None
    temperature_c: float | None
    power_w: float | None


def id_of(accelerator: Accelerator) -> str:
    """How people and the admin API name an accelerator: nvidia0."""
    vendor = accelerator.vendor.value
    return vendor if accelerator.index is None else f"{vendor}{accelerator.index}"


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
        self._samples: dict[str, deque[Sample]] = {}
        self._sampled_mono: float | None = None

    @property
    def last(self) -> Machine | None:
        """The last picture, however old; None before the first."""
        return self._machine

    def history(self, accelerator_id: str) -> list[Sample]:
        """Of the last hours, oldest first; empty for one that was never seen."""
        return list(self._samples.get(accelerator_id, ()))

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
        self._sample(machine)
        for change in changes(before, machine) if before is not None else ():
            self._tell(change)
        return machine

    def _sample(self, machine: Machine) -> None:
        if self._sampled_mono is not None and self._seen_mono - self._sampled_mono < SAMPLE_EVERY_S:
            return
        self._sampled_mono = self._seen_mono
        for found in machine.accelerators:
            kept = self._samples.setdefault(id_of(found), deque(maxlen=KEPT_SAMPLES))
            kept.append(
                Sample(
                    machine.as_of,
                    found.utilisation_percent,
                    found.memory_used_bytes,
                    found.temperature_c,
                    found.power_w,
                )
            )

    def _tell(self, change: Change) -> None:
        log.warning(str(change.kind), subject=change.subject, before=change.before, after=change.after)
        self._events.publish("hardware", change.subject, change.before, change.after, change.reason or change.kind)
