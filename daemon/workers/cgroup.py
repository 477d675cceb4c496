"""A control group for each worker, below the daemon's own, where the service manager has delegated that (version 2)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from engine.errors import ConfigError

_OWN = "daemon"
_CONTROLLERS = ("memory", "pids", "cpu")


@dataclass(frozen=True, slots=True)
class CgroupTree:
    """The daemon's control group, split into one for itself and one for each worker. Owner: the Supervisor."""

    folder: Path
    memory_max_bytes: int | None

    @classmethod
    def take_over(cls, memory_max_bytes: int | None, root: Path = Path("/")) -> CgroupTree:
        """Move every process of our group into a leaf, as the kernel asks, and hand the controllers down.

        Raises: ConfigError where that is not ours to do.
        """
        folder = _own_folder(root)
        try:
            leaf = folder / _OWN
            leaf.mkdir(exist_ok=True)
            for pid in (folder / "cgroup.procs").read_text().split():
                (leaf / "cgroup.procs").write_text(pid)
            there = (folder / "cgroup.controllers").read_text().split()
            wanted = " ".join(f"+{name}" for name in _CONTROLLERS if name in there)
            (folder / "cgroup.subtree_control").write_text(wanted)
        except OSError as error:
            raise ConfigError(
                f"workers.cgroups is on, and the control group {folder} cannot be divided: {error.strerror or error}.",
                "Add Delegate=memory pids cpu and ProtectControlGroups=no to the unit (systemctl edit bayard), "
                "or set workers.cgroups = false.",
            ) from error
        return cls(folder, memory_max_bytes)

    def make(self, worker: str) -> Path:
        """A group with the limit, emptied of an earlier one's counters. Raises: OSError"""
        group = self.folder / _name(worker)
        if group.exists():
            group.rmdir()
        group.mkdir()
        if self.memory_max_bytes is not None:
            (group / "memory.max").write_text(str(self.memory_max_bytes))
            oom_group = group / "memory.oom.group"
            if oom_group.exists():
                oom_group.write_text("1")  # the whole worker or nothing of it
        return group

    def remove(self, worker: str) -> None:
        """Harmless where it is gone; a group that still has a process stays for the next start to find."""
        try:
            (self.folder / _name(worker)).rmdir()
        except OSError:
            return


def _own_folder(root: Path) -> Path:
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError as error:
        raise ConfigError(
            f"workers.cgroups is on, and the daemon's control group cannot be read: {error.strerror or error}.",
            "Set workers.cgroups = false.",
        ) from error
    for line in lines:
        number, _, path = line.split(":", 2)
        if number == "0":
            folder = root / "sys/fs/cgroup" / path.lstrip("/")
            if (folder / "cgroup.subtree_control").exists():
                return folder
    raise ConfigError(
        "workers.cgroups is on, and the daemon is in no control group of version 2.", "Set workers.cgroups = false."
    )


def _name(worker: str) -> str:
    return "worker-" + "".join(char if char.isalnum() or char in "-_." else "_" for char in worker)
