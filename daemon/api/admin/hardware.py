"""GET host and accelerators: what the machine is and how it fares."""

from __future__ import annotations

import asyncio
import time

import psutil
from fastapi import APIRouter

from daemon.api.admin.access import Operator, Services, Viewer
from daemon.api.admin.answers import Answer, Item
from hwdetect import doctor
from hwdetect.facts import encode
from hwdetect.machine import Accelerator, Disk, Machine

router = APIRouter(tags=["hardware"])


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


@router.get("/host")
async def get_host(services: Services, caller: Viewer) -> HostAnswer:
    machine = await services.machine.current()
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
async def get_accelerators(services: Services, caller: Viewer) -> AcceleratorsAnswer:
    machine = await services.machine.current()
    return AcceleratorsAnswer(items=[_item(device) for device in machine.accelerators], as_of=machine.as_of)


@router.post("/accelerators/rescan")
async def post_rescan(services: Services, caller: Operator) -> AcceleratorsAnswer:
    """Ask the vendors' tools now; what has changed is an event."""
    machine = await services.machine.rescan()
    await services.tenants.record(caller.actor, "accelerators.rescan", "host", {"found": len(machine.accelerators)})
    return AcceleratorsAnswer(items=[_item(device) for device in machine.accelerators], as_of=machine.as_of)


class CheckItem(Item):
    """verdict: ok, info, warning, error, as `bayard doctor` prints it."""

    id: str
    title: str
    verdict: str
    text: str
    fix: str
    took_ms: int


class ChecksAnswer(Answer):
    items: list[CheckItem]


@router.get("/doctor/checks")
async def get_checks(services: Services, caller: Viewer) -> ChecksAnswer:
    """Run every check now, on a picture of the machine that is seconds old."""
    machine = await services.machine.current()
    context = doctor.Context(machine, services.settings.state_dir, ())
    results = await asyncio.to_thread(doctor.run, context, (), ())
    return ChecksAnswer(items=[CheckItem(**encode(result)) for result in results])


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
