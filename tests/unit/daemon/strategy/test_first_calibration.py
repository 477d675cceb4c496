"""The first calibration: only where nothing was measured, only while nothing runs, over at the first request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from daemon.models.operations import Operations
from daemon.strategy import first_calibration
from daemon.strategy.first_calibration import FirstCalibration
from daemon.workers.states import WorkerState
from engine.errors import Conflict
from engine.messages import WorkerStats
from tests.fakes.strategy_parts import worker_view


class Desk:
    """Measures until it is told to end, or to go on to the end."""

    def __init__(self) -> None:
        self.left = ["cpu"]
        self.begun = 0
        self.may_end = False

    def uncalibrated(self) -> list[str]:
        return self.left

    def calibrate(
        self, seconds: float, device: str | None = None, cancelled: Callable[[], bool] = lambda: False
    ) -> list[Any]:
        self.begun += 1
        while not self.may_end:
            if cancelled():
                raise Conflict("cancelled while measuring cpu.", "Nothing was kept.")
        self.left = []
        return [SimpleNamespace(to_json=dict)]


class Box:
    def __init__(self) -> None:
        self.now, self.quiet = 0.0, True
        self.view = worker_view("small", WorkerStats())
        self.desk, self.operations = Desk(), Operations()
        self.first = FirstCalibration(
            self.desk, self.operations, lambda: [self.view], 60.0, clock=lambda: self.now, is_quiet=lambda: self.quiet
        )

    def looks(self, times: int) -> list[bool]:
        found = []
        for _ in range(times):
            self.now += 10.0
            found.append(self.first.is_time())
        return found


@pytest.fixture
async def box(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Box]:
    for name in ("LOOK_S", "QUICK_LOOK_S"):
        monkeypatch.setattr(first_calibration, name, 0.01)
    made = Box()
    yield made
    made.desk.may_end = True
    made.operations.close()


async def test_time_comes_once_the_box_was_idle_for_long_enough(box: Box) -> None:
    assert box.looks(8) == [False] * 7 + [True], "the first look knows nothing of before"
    box.view = replace(box.view, submitted_total=1)
    assert box.looks(8) == [False] * 7 + [True], "a request that came and went between two looks counts"
    box.quiet = False
    assert box.looks(2) == [False, False], "somebody else computes"
    box.quiet = True
    box.view = replace(box.view, state=WorkerState.STARTING)
    assert not any(box.looks(20))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.005)


async def test_request_ends_the_measuring_which_is_begun_again_in_the_next_quiet_time(box: Box) -> None:
    following = asyncio.create_task(box.first.follow())
    box.looks(8)
    await until(lambda: box.desk.begun == 1)
    box.view = replace(box.view, inflight=1, submitted_total=1)
    await until(lambda: box.operations.all()[0].ended)
    assert not following.done()
    box.view = replace(box.view, inflight=0)
    box.desk.may_end = True
    await asyncio.sleep(0.05)
    assert box.desk.begun == 1
    box.looks(8)
    await asyncio.wait_for(following, 5)
    assert box.desk.begun == 2


async def test_measured_machine_and_a_switched_off_setting_are_left_alone(box: Box) -> None:
    box.desk.left = []
    await asyncio.wait_for(box.first.follow(), 1)
    box.desk.left = ["cpu"]
    never = FirstCalibration(box.desk, box.operations, lambda: [box.view], 0.0)
    await asyncio.wait_for(never.follow(), 1)
    assert box.desk.begun == 0
