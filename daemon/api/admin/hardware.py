"""GET host: what the machine is and how it fares."""

from __future__ import annotations

import time

import psutil
from fastapi import APIRouter

from daemon.api.admin.access import Services, Viewer
from daemon.api.admin.answers import Answer
from hwdetect.machine import Disk, Machine

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


def _state_disk(machine: Machine) -> Disk | None:
    return machine.disks[0] if machine.disks else None
