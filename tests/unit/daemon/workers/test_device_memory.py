"""A worker's next start waits until its accelerator's memory is back, and says so when it does not come."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from daemon.workers import device_memory
from daemon.workers.device_memory import DeviceMemory

GIB = 1 << 30


class Machine:
    def __init__(self, *used: int | None) -> None:
        self.used = list(used)
        self.looks = 0

    def __call__(self) -> Any:
        self.looks += 1
        used = self.used.pop(0) if len(self.used) > 1 else self.used[0]
        return SimpleNamespace(
            accelerators=[
                SimpleNamespace(index=0, memory_used_bytes=used),
                SimpleNamespace(index=1, memory_used_bytes=70 * GIB),
            ]
        )


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_memory, "LOOK_EVERY_S", 0.001)


async def test_cpu_has_nothing_to_wait_for() -> None:
    machine = Machine(0)
    assert await DeviceMemory(machine).confirm_free("cpu") == ""
    assert machine.looks == 0


async def test_next_start_waits_until_the_memory_is_back() -> None:
    machine = Machine(1 * GIB, 60 * GIB, 60 * GIB, 1 * GIB)
    memory = DeviceMemory(machine)
    assert await memory.confirm_free("cuda:0") == ""  # the first: nothing to compare with
    assert await memory.confirm_free("cuda:0") == ""
    assert machine.looks == 4


async def test_memory_that_stays_is_told_with_both_numbers() -> None:
    memory = DeviceMemory(Machine(1 * GIB, 60 * GIB), give_up_s=0.02)
    await memory.confirm_free("cuda:0")
    told = await memory.confirm_free("cuda:0")
    assert told == "device 0 holds 60.0 GiB, 1.0 GiB before the last start"
    assert await memory.confirm_free("cuda:0") == told  # what is held is not taken for the new normal


async def test_device_that_does_not_say_is_not_waited_for() -> None:
    memory = DeviceMemory(Machine(None))
    assert await memory.confirm_free("cuda:0") == ""
