"""Whether the kernel killed for want of memory: the counters of the control group that daemon and workers share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class OomCounter:
    """Kills so far in our control group. None where the kernel does not tell."""

    kills: int | None
    limit_bytes: int | None

    @classmethod
    def read(cls, root: Path = Path("/")) -> OomCounter:
        folder = _memory_group(root)
        if folder is None:
            return cls(None, None)
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
