"""The host processor as a device."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from engine.devices.base import Capabilities
from engine.errors import DeviceUnusable


class CpuDevice:
    def __init__(self) -> None:
        self.torch_device = torch.device("cpu")
        self.default_dtype = torch.float32
        self.runs_behind = False
        self.index_dtype = torch.int64
        self.capabilities = Capabilities(bf16=True, fp8=False, triton=False, graphs=False, host_visible_memory=True)
        self.notes: list[str] = []

    def free_bytes(self) -> int:
        """MemAvailable, cut by what the process's own memory cgroup leaves."""
        limits = [_meminfo("MemAvailable:")]
        for folder in own_cgroups():
            limit, used = _number(f"{folder}/memory.max"), _number(f"{folder}/memory.current")
            if limit is not None and used is not None:
                limits.append(max(0, limit - used))
        return min(limits)

    def used_bytes(self) -> int:
        return 0

    def synchronize(self) -> None:
        _nothing_to_wait_for()

    def release_unused(self) -> None:
        _nothing_to_wait_for()

    def copy_to_device(self, array: NDArray[np.int32] | NDArray[np.float32]) -> torch.Tensor:
        return torch.from_numpy(array)

    def copy_to_host(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Callable[[], None]]:
        return tensor, _nothing_to_wait_for

    def mark(self) -> Callable[[], None]:
        return _nothing_to_wait_for

    def pinned_ints(self, count: int) -> torch.Tensor:
        return torch.zeros(count, dtype=torch.int32)

    def capture_graph(self, run: Callable[[], torch.Tensor], memory: object) -> tuple[object, torch.Tensor, object]:
        raise DeviceUnusable("A CPU has no graphs to capture.")

    def replay_graph(self, graph: object) -> None:
        raise DeviceUnusable("A CPU has no graphs to replay.")


def _nothing_to_wait_for() -> None:
    """Nothing runs behind the caller's back."""


def usable_cpus() -> int:
    """Cores this process may run on: its affinity, cut by a cgroup CPU quota if there is one."""
    cores = len(os.sched_getaffinity(0))
    for folder in own_cgroups():
        quota, _, period = (_read(f"{folder}/cpu.max") or "max").partition(" ")
        if quota != "max":
            cores = max(1, min(cores, int(quota) // int(period)))
    return cores


def own_cgroups(root: str = "/sys/fs/cgroup", membership: str = "/proc/self/cgroup") -> list[str]:
    """Folders of this process's control group (v2) and of those above it, whose limits hold for it too."""
    lines = (_read(membership) or "").splitlines()
    path = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "/")
    parts = [part for part in path.split("/") if part not in ("", "..")]
    return [root, *(f"{root}/{'/'.join(parts[:end])}" for end in range(1, len(parts) + 1))]


def _meminfo(key: str) -> int:
    with open("/proc/meminfo") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


def _number(path: str) -> int | None:
    text = _read(path)
    return None if text is None or text == "max" else int(text)


def _read(path: str) -> str | None:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return None
