"""The list of checks that `doctor` runs. Ids are stable: scripts and manuals name them."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator
from datetime import UTC, datetime

from hwdetect import torch_view
from hwdetect.accelerator import State
from hwdetect.doctor import Check, Context, Finding, Verdict
from hwdetect.machine import Severity
from hwdetect.render import size

GIB = 1 << 30
_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph", "glusterfs", "fuse.glusterfs", "lustre", "afs")


def detection(context: Context) -> Iterator[Finding]:
    for note in context.machine.notes:
        if note.severity is not Severity.INFO:
            verdict = Verdict.ERROR if note.severity is Severity.ERROR else Verdict.WARNING
            yield Finding(verdict, f"{note.subject}: {note.text}", note.fix)


def instruction_sets(context: Context) -> Iterator[Finding]:
    cpu = context.machine.cpu
    fast = {"avx2", "avx512", "neon"}
    if cpu.isa_levels and not fast.intersection(cpu.isa_levels):
        yield Finding(Verdict.WARNING, f"no AVX2 or NEON, only {' '.join(cpu.isa_levels)}: the CPU will be very slow")
    elif not cpu.isa_levels:
        yield Finding(Verdict.WARNING, "the processor's instruction sets are not known to Bayard")


def cpu_limit(context: Context) -> Iterator[Finding]:
    cpu = context.machine.cpu
    if cpu.logical_cpus and cpu.usable_threads < cpu.logical_cpus:
        text = f"this process may use {cpu.usable_threads} of {cpu.logical_cpus} CPUs"
        yield Finding(Verdict.INFO, text, "raise the container's or service's CPU limit if that is not meant")


def memory_available(context: Context) -> Iterator[Finding]:
    available = context.machine.memory.available_bytes
    if available is None:
        yield Finding(Verdict.WARNING, "how much memory is available is not known")
    elif available < GIB // 2:
        yield Finding(
            Verdict.ERROR, f"only {size(available)} can be allocated", "stop other programs: ps aux --sort=-rss"
        )
    elif available < 2 * GIB:
        yield Finding(Verdict.WARNING, f"only {size(available)} can be allocated", "stop other programs, or add memory")


def memory_limit(context: Context) -> Iterator[Finding]:
    memory = context.machine.memory
    limit, total = memory.effective_limit_bytes, memory.total_bytes
    if limit is not None and total is not None and limit < total:
        why = memory.sources.get("cgroup_limit_bytes") or memory.sources.get("memory_set_bytes") or "a setting"
        yield Finding(Verdict.INFO, f"{size(limit)} of {size(total)} may be used ({why})")


def memory_lock(context: Context) -> Iterator[Finding]:
    locked = context.machine.memory.lock_limit_bytes
    if locked is not None and locked < 64 << 20 and context.machine.usable_accelerators:
        text = f"only {size(locked)} may be locked: pinned buffers for accelerators may fail"
        yield Finding(Verdict.WARNING, text, "set LimitMEMLOCK=infinity for the service, or ulimit -l unlimited")


def shared_memory(context: Context) -> Iterator[Finding]:
    try:
        room = os.statvfs("/dev/shm")
    except OSError:
        yield Finding(
            Verdict.WARNING, "/dev/shm is not there: worker processes cannot share memory", "mount a tmpfs on it"
        )
        return
    total = room.f_blocks * room.f_frsize
    if total < 256 << 20:
        yield Finding(Verdict.WARNING, f"/dev/shm has only {size(total)}", "start the container with --shm-size=1g")


def disk_room(context: Context) -> Iterator[Finding]:
    for disk in context.machine.disks:
        if disk.free_bytes is None:
            yield Finding(Verdict.WARNING, f"the free space of {disk.path} is not known")
        elif disk.free_bytes < GIB:
            yield Finding(
                Verdict.ERROR, f"{disk.path} has {size(disk.free_bytes)} left", f"make room: du -xh -d2 {disk.path}"
            )
        elif disk.free_bytes < 10 * GIB:
            text = f"{disk.path} has {size(disk.free_bytes)} left: no room for most models"
            yield Finding(Verdict.WARNING, text, f"make room: du -xh -d2 {disk.path}")


def disk_kind(context: Context) -> Iterator[Finding]:
    for disk in context.machine.disks:
        if disk.filesystem in _NETWORK:
            text = f"{disk.path} lies on {disk.filesystem}: the database needs a local disk"
            yield Finding(Verdict.ERROR, text, "set state_dir to a folder on a local disk")
        elif disk.rotational:
            yield Finding(Verdict.INFO, f"{disk.path} lies on a rotating disk: models load slowly")


def state_folder(context: Context) -> Iterator[Finding]:
    folder = context.state_dir
    if folder is None:
        return
    nearest = folder
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    if nearest.exists() and not nearest.is_dir():
        yield Finding(Verdict.ERROR, f"{nearest} is not a folder", "set state_dir to another path")
    elif not os.access(nearest, os.W_OK | os.X_OK):
        yield Finding(Verdict.ERROR, f"this user may not write to {nearest}", f"sudo chown $USER {nearest}")


def ports(context: Context) -> Iterator[Finding]:
    for host, port in context.free_ports:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                text = f"{host}:{port} cannot be opened: {error.strerror}"
                yield Finding(Verdict.ERROR, text, f"see who holds it: sudo ss -ltnp 'sport = :{port}'")


def open_files(context: Context) -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 4096:
        text = f"at most {soft} files and connections may be open (hard limit {hard})"
        yield Finding(Verdict.WARNING, text, "set LimitNOFILE=65536 for the service, or ulimit -n 65536")


def clock(context: Context) -> Iterator[Finding]:
    if datetime.now(UTC).year < 2025:
        yield Finding(
            Verdict.ERROR, "the clock is years behind: schedules and keys would be wrong", "timedatectl set-ntp true"
        )


def accelerators_usable(context: Context) -> Iterator[Finding]:
    for device in context.machine.accelerators:
        if device.usable:
            continue
        name = f"{device.vendor}:{device.index} {device.name or ''}".strip()
        verdict = Verdict.WARNING if device.state in (State.UNKNOWN, State.NOT_EXPOSED) else Verdict.ERROR
        yield Finding(verdict, f"{name} is {device.state}: {device.reason or 'no source says why'}", device.fix)


def accelerators_health(context: Context) -> Iterator[Finding]:
    for device in context.machine.usable_accelerators:
        name = f"{device.vendor}:{device.index} {device.name or ''}".strip()
        for warning in device.warnings:
            if device.state is not State.BUSY or warning != "in use by other processes":
                yield Finding(Verdict.WARNING, f"{name}: {warning}")


def accelerators_busy(context: Context) -> Iterator[Finding]:
    for device in context.machine.accelerators:
        if device.state is State.BUSY:
            name = f"{device.vendor}:{device.index} {device.name or ''}".strip()
            yield Finding(Verdict.WARNING, f"{name}: {device.reason}", device.fix)


def torch_agrees(context: Context) -> Iterator[Finding]:
    view = torch_view.look(limit_s=2.5)
    if view.version is None and "did not answer" in view.problem:
        yield Finding(Verdict.INFO, "torch takes too long to import to be asked here")
        return
    for note in torch_view.compare(context.machine, view):
        verdict = Verdict.INFO if note.severity is Severity.INFO else Verdict.WARNING
        yield Finding(verdict, note.text, note.fix)


CHECKS: tuple[Check, ...] = (
    Check("detection.complete", "every source of hardware facts could be read", detection),
    Check("cpu.sets", "the processor has fast vector instructions", instruction_sets),
    Check("cpu.limit", "all processors may be used", cpu_limit),
    Check("memory.available", "enough memory is available", memory_available),
    Check("memory.limit", "all memory may be used", memory_limit),
    Check("memory.lock", "enough memory may be locked", memory_lock),
    Check("memory.shared", "processes can share memory", shared_memory),
    Check("disk.room", "the state folder's disk has room", disk_room),
    Check("disk.kind", "the state folder's disk suits a database", disk_kind),
    Check("disk.writable", "the state folder can be written", state_folder),
    Check("net.ports", "the ports are free", ports),
    Check("limits.files", "enough files may be open", open_files),
    Check("host.clock", "the clock is right", clock),
    Check("accelerator.usable", "every accelerator can be used", accelerators_usable),
    Check("accelerator.health", "every accelerator is healthy", accelerators_health),
    Check("accelerator.busy", "no other process holds an accelerator's memory", accelerators_busy),
    Check("torch.agrees", "torch sees the same devices", torch_agrees),
)
