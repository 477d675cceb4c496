"""GET host and accelerators: what the machine is and how it fares."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import cast

import psutil
from fastapi import APIRouter, Request

from daemon.api.admin.access import Viewer
from daemon.api.admin.answers import Answer, Item
from hwdetect.detect import detect
from hwdetect.machine import Accelerator, Disk, Machine

router = APIRouter(tags=["hardware"])
FRESH_S = 5.0


class HostAnswer(Answer):
    """cpu_used is a fraction of 1, since the last question."""

    hostname: str | None
    cpu_model: str | None
    cpus: int | None
    cores: int | None
    isa_levels: list[str]
    memory_total_bytes: int | None
    memory_available_bytes: int | None
    cpu_used: float | None
    uptime_s: float | None
    disk_total_bytes: int | None
    disk_free_bytes: int | None
    notes: list[str]


class AcceleratorItem(Item):
    id: str
    vendor: str
    state: str
    name: str | None
    reason: str
    fix: str
    utilisation_percent: float | None
    memory_total_bytes: int | None
    memory_used_bytes: int | None
    temperature_c: float | None
    power_w: float | None
    power_limit_w: float | None
    ecc_uncorrected: int | None


class AcceleratorsAnswer(Answer):
    items: list[AcceleratorItem]


class MachineWatch:
    """Asks the machine at most every FRESH_S, in a thread; meanwhile the last picture is shown.

    Owner: the admin application.
    """

    def __init__(self, state_dir: Path, fresh_s: float = FRESH_S) -> None:
        self._state_dir = state_dir
        self._fresh_s = fresh_s
        self._machine: Machine | None = None
        self._seen_mono = 0.0
        self._asking: asyncio.Task[Machine] | None = None

    async def current(self) -> Machine:
        """Blocks: for the first picture only."""
        stale = time.monotonic() - self._seen_mono > self._fresh_s
        if self._asking is None and (self._machine is None or stale):
            self._asking = asyncio.create_task(self._ask())
        if self._machine is None:
            assert self._asking is not None
            return await asyncio.shield(self._asking)
        return self._machine

    async def _ask(self) -> Machine:
        try:
            self._machine = await asyncio.to_thread(detect, Path("/"), state_dir=self._state_dir)
            self._seen_mono = time.monotonic()
            return self._machine
        finally:
            self._asking = None


@router.get("/host")
async def get_host(request: Request, caller: Viewer) -> HostAnswer:
    machine = await _watch(request).current()
    disk = _state_disk(machine)
    return HostAnswer(
        hostname=machine.host.hostname,
        cpu_model=machine.cpu.model,
        cpus=machine.cpu.usable_threads,
        cores=machine.cpu.usable_cores,
        isa_levels=list(machine.cpu.isa_levels),
        memory_total_bytes=machine.memory.effective_limit_bytes,
        memory_available_bytes=machine.memory.available_bytes,
        cpu_used=psutil.cpu_percent(None) / 100,
        uptime_s=time.time() - psutil.boot_time(),
        disk_total_bytes=disk.total_bytes if disk else None,
        disk_free_bytes=disk.free_bytes if disk else None,
        notes=[f"{note.subject}: {note.text}" for note in machine.notes],
    )


@router.get("/accelerators")
async def get_accelerators(request: Request, caller: Viewer) -> AcceleratorsAnswer:
    machine = await _watch(request).current()
    return AcceleratorsAnswer(items=[_item(device) for device in machine.accelerators], as_of=machine.as_of)


def _watch(request: Request) -> MachineWatch:
    return cast(MachineWatch, request.app.state.machine)


def _state_disk(machine: Machine) -> Disk | None:
    return machine.disks[0] if machine.disks else None


def _item(device: Accelerator) -> AcceleratorItem:
    return AcceleratorItem(
        id=device.vendor.value if device.index is None else f"{device.vendor.value}{device.index}",
        vendor=device.vendor.value,
        state=device.state.value,
        name=device.name,
        reason=device.reason,
        fix=device.fix,
        utilisation_percent=device.utilisation_percent,
        memory_total_bytes=device.memory_total_bytes,
        memory_used_bytes=device.memory_used_bytes,
        temperature_c=device.temperature_c,
        power_w=device.power_w,
        power_limit_w=device.power_limit_w,
        ecc_uncorrected=device.ecc_uncorrected,
    )
