"""FirstCalibration: measures this machine by itself, once, the first time that it is idle for a while.

Until then, and where it is switched off, shipped rates serve. It takes all cores, so it begins only while nothing runs
and ends at once when a request comes; then it waits for the next quiet time.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import Any, Protocol

import structlog

from daemon.models.copying import Cancelled, Report
from daemon.models.operations import Operation, OperationState
from daemon.models.record import ImportProgress
from daemon.planning.calibrate import DEFAULT_SECONDS
from daemon.workers.states import WorkerState
from daemon.workers.view import WorkerView

LOOK_S = 3.0
QUICK_LOOK_S = 0.1  # while it measures
QUIET_LOAD = 0.3  # a core; more, and somebody else computes
_AT_REST = (WorkerState.READY, WorkerState.SLEEPING, WorkerState.LATCHED)

log = structlog.get_logger("bayard.strategy")
Work = Callable[[Report, Cancelled], dict[str, Any]]


class Desk(Protocol):
    def uncalibrated(self) -> list[str]: ...
    def calibrate(
        self, seconds: float, device: str | None = None, cancelled: Callable[[], bool] = ...
    ) -> list[Any]: ...


class Operations(Protocol):
    def start(self, kind: str, subject: str, work: Work) -> Operation: ...
    def get(self, operation_id: str) -> Operation: ...
    def cancel(self, operation_id: str) -> Operation: ...


class FirstCalibration:
    """Owner: the Appliance. after_s: how long it must have been idle; 0: never."""

    def __init__(
        self,
        desk: Desk,
        operations: Operations,
        views: Callable[[], list[WorkerView]],
        after_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        is_quiet: Callable[[], bool] | None = None,
    ) -> None:
        self._desk = desk
        self._operations = operations
        self._views = views
        self._after_s = after_s
        self._clock = clock
        self._is_quiet = is_quiet or machine_is_quiet
        self._idle_since: float | None = None
        self._seen: tuple[int, ...] = ()

    async def follow(self) -> None:
        """Until every device is measured, or one could not be."""
        if not self._after_s:
            return
        while devices := await asyncio.to_thread(self._desk.uncalibrated):
            if self.is_time():
                ended = await self._measure(devices)
                if ended.state is not OperationState.CANCELLED:
                    told = ended.error.message if ended.error is not None else "measured"
                    log.info("first_calibration", state=ended.state.value, told=told)
                    return
            await asyncio.sleep(LOOK_S)

    def is_time(self) -> bool:
        """Whether nothing has computed here for the time that is asked. Called at each look."""
        now = self._clock()
        if self._is_disturbed() or not self._is_quiet():
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now
        return self._idle_since is not None and now - self._idle_since >= self._after_s

    def _is_disturbed(self) -> bool:
        """Whether a request came, runs or waits since the last call, or a worker is on its way."""
        views = self._views()
        before, self._seen = self._seen, tuple(view.submitted_total for view in views)
        busy = any(view.inflight or view.state not in _AT_REST for view in views)
        return busy or before != self._seen

    async def _measure(self, devices: list[str]) -> Operation:
        def work(report: Report, cancelled: Cancelled) -> dict[str, Any]:
            found = []
            for device in devices:
                report(ImportProgress("measuring", device, 0, 0))
                found += self._desk.calibrate(DEFAULT_SECONDS / len(devices), device, cancelled)
            return {"devices": [rates.to_json() for rates in found]}

        operation = self._operations.start("calibrate", "machine, for the first time", work)
        while not (operation := self._operations.get(operation.id)).ended:
            if self._is_disturbed():
                self._operations.cancel(operation.id)
            await asyncio.sleep(QUICK_LOOK_S)
        self._idle_since = None
        return operation


def machine_is_quiet() -> bool:
    cores = len(os.sched_getaffinity(0))
    return os.getloadavg()[0] < QUIET_LOAD * cores
