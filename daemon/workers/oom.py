"""Whether the kernel killed for want of memory: the counters of the control group that daemon and workers share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_MOST_RECORDS = 20_000


@dataclass(frozen=True, slots=True)
class OomCounter:
    """Kills so far in our control group. None where the kernel does not tell."""

    kills: int | None
    limit_bytes: int | None

    @classmethod
    def read(cls, root: Path = Path("/")) -> OomCounter:
        folder = _memory_group(root)
        return cls(None, None) if folder is None else cls.of(folder)

    @classmethod
    def of(cls, folder: Path) -> OomCounter:
        """Those of one control group."""
        kills = _field(folder / "memory.events", "oom_kill")  # version 2
        if kills is not None:
            return cls(kills, _number(folder / "memory.max"))
        return cls(_field(folder / "memory.oom_control", "oom_kill"), _number(folder / "memory.limit_in_bytes"))

    def since(self, before: OomCounter) -> str:
        """The cause of a SIGKILL between the two readings; empty if memory was not it, or nobody knows."""
        if self.kills is None or before.kills is None or self.kills <= before.kills:
            return ""
        bound = f"; its limit is {self.limit_bytes / 2**30:.1f} GiB" if self.limit_bytes is not None else ""
        return f"out of memory in the service's control group{bound}"


def kernel_log_of(pid: int | None, path: Path = Path("/dev/kmsg")) -> str:
    """What the kernel's log says of a process that its memory killer chose; empty where it says nothing to us."""
    if pid is None:
        return ""
    mark = f"Killed process {pid} "
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        for record in _records(fd):
            if mark in record:
                return f"out of memory, as the kernel's log says: {record.partition(';')[2].splitlines()[0]}"
    finally:
        os.close(fd)
    return ""


def _records(fd: int) -> Iterator[str]:
    """One record a read, until there is no more; one that was overwritten meanwhile is passed over."""
    for _ in range(_MOST_RECORDS):
        try:
            data = os.read(fd, 8192)
        except BrokenPipeError:
            continue
        except OSError:
            return
        if not data:
            return
        yield data.decode("utf-8", "replace")


def _memory_group(root: Path) -> Path | None:
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0":
            folder = root / "sys/fs/cgroup" / path.lstrip("/")
        elif "memory" in controllers.split(","):
            folder = root / "sys/fs/cgroup/memory" / path.lstrip("/")
        else:
            continue
        if (folder / "memory.events").exists() or (folder / "memory.oom_control").exists():
            return folder
    return None


def _field(path: Path, name: str) -> int | None:
    try:
        fields = dict(line.split(None, 1) for line in path.read_text().splitlines() if " " in line)
        return int(fields[name])
    except (OSError, KeyError, ValueError):
        return None


def _number(path: Path) -> int | None:
    """None too for "max", and for version 1's way to say that there is no limit."""
    try:
        value = int(path.read_text())
    except (OSError, ValueError):
        return None
    return value if value < 1 << 62 else None
