"""The watch's pictures and the events it makes of what changed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from daemon import machine_watch
from daemon.machine_watch import MachineWatch
from hwdetect.accelerator import Accelerator, State, Vendor
from hwdetect.detect import detect
from hwdetect.machine import Machine


class Told:
    """Stands in for the event log."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, str | None, str | None]] = []

    def publish(self, kind: str, subject: str, before: str | None, after: str | None, reason: str = "") -> None:
        self.events.append((kind, subject, before, after))


def machine(*states: State) -> Machine:
    devices = tuple(
        Accelerator(vendor=Vendor.NVIDIA, index=i, name="H200", pci_address=f"0000:0{i}:00.0", state=state)
        for i, state in enumerate(states)
    )
    return replace(detect(Path("/nowhere")), accelerators=devices)


def watch_over(*pictures: Machine) -> tuple[MachineWatch, Told]:
    told, left = Told(), list(pictures)
    look = lambda: left.pop(0) if len(left) > 1 else left[0]  # noqa: E731
    return MachineWatch(Path("/nowhere"), told, fresh_s=0.0, look=look), told  # type: ignore[arg-type]


async def look_again(watch: MachineWatch) -> None:
    await watch.current()
    if watch._looking is not None:
        await watch._looking


async def test_device_lost_and_back_is_told_once_each():
    ok, lost = machine(State.USABLE, State.USABLE), machine(State.USABLE)
    watch, told = watch_over(ok, ok, lost, lost, ok)
    for _ in range(5):
        await look_again(watch)
    assert [(kind, before, after) for kind, _, before, after in told.events] == [
        ("hardware", "usable", "gone"),
        ("hardware", "absent", "usable"),
    ]


async def test_first_picture_tells_nothing_and_is_waited_for():
    watch, told = watch_over(machine(State.USABLE))
    assert len((await watch.current()).accelerators) == 1
    assert told.events == []


async def test_follow_looks_without_being_asked(monkeypatch):
    monkeypatch.setattr(machine_watch, "LOOK_EVERY_S", 0.01)
    watch, told = watch_over(machine(State.USABLE), machine(State.LOST))
    follower = asyncio.create_task(watch.follow())
    for _ in range(200):
        await asyncio.sleep(0.01)
        if told.events:
            break
    follower.cancel()
    assert told.events[0][2:] == ("usable", "lost")
