"""One description of a machine: what planning trusts. Frozen, comparable, and the same after a trip through JSON.

Machine
  host          Host: kernel, product, container, hypervisor
  cpu           Cpu: model, cores, what this process may use, instruction sets
  numa          NumaNode ...
  memory        Memory: total, available now, effective limit
  cgroup        Cgroup: limits of this process' control groups
  accelerators  Accelerator ... (accelerator.py)
  disks         Disk ...: the state folder's, and where models may lie
  notes         Note ...: what could not be read and what to do about it
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

from hwdetect.accelerator import Accelerator, State, Vendor
from hwdetect.facts import Facts, decode, encode

SCHEMA = 1


class Severity(StrEnum):
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Note:
    """Something a person should know about the detection itself: a source that failed, facts that contradict."""

    severity: Severity
    subject: str
    text: str
    fix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host(Facts):
    hostname: str | None = None
    system: str | None = None
    kernel: str | None = None
    architecture: str | None = None
    vendor: str | None = None
    product: str | None = None
    container: str | None = None  # docker, podman, kubernetes, lxc, "none"
    hypervisor: str | None = None
    wsl: bool | None = None


@dataclass(frozen=True, slots=True)
class CoreKind:
    """Cores of one kind on a machine with several: performance and efficiency cores, big and little ones."""

    name: str
    cores: int
    cpus: tuple[int, ...]
    max_mhz: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu(Facts):
    """Counts are of what is online; `usable_*` of what this process may use."""

    model: str | None = None
    vendor: str | None = None
    architecture: str | None = None
    sockets: int | None = None
    physical_cores: int | None = None
    cores_per_socket: int | None = None
    threads_per_core: int | None = None
    logical_cpus: int | None = None
    present_cpus: int | None = None
    online: tuple[int, ...] = ()
    usable_cpus: tuple[int, ...] = ()
    usable_physical_cores: int | None = None
    quota_cpus: float | None = None  # CPU time limit in CPUs; None: no limit is known
    core_kinds: tuple[CoreKind, ...] = ()
    isa_levels: tuple[str, ...] = ()
    l2_cache_bytes: int | None = None  # per instance
    l3_cache_bytes: int | None = None  # per instance
    l3_caches: int | None = None
    max_mhz: float | None = None

    @property
    def usable_threads(self) -> int:
        """Logical CPUs worth of time this process gets: affinity and quota together, at least one."""
        count = len(self.usable_cpus) or self.logical_cpus or 1
        return max(1, min(count, int(self.quota_cpus))) if self.quota_cpus is not None else count

    @property
    def usable_cores(self) -> int:
        """How many compute threads make sense: physical cores within affinity and quota, at least one."""
        cores = self.usable_physical_cores or min(self.usable_threads, self.physical_cores or self.usable_threads)
        return max(1, min(cores, self.usable_threads))


@dataclass(frozen=True, slots=True, kw_only=True)
class NumaNode(Facts):
    node: int
    cpus: tuple[int, ...] = ()
    memory_total_bytes: int | None = None
    memory_free_bytes: int | None = None
    distances: tuple[int, ...] = ()  # to the online nodes in ascending order, as the kernel prints them
    accelerator: str | None = None  # PCI address of the device whose memory this node is
    usable: bool | None = None  # False: outside this process' memory set


@dataclass(frozen=True, slots=True)
class HugePages:
    size_bytes: int
    total: int | None = None
    free: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory(Facts):
    """Host memory; device memory that the kernel counts as host memory is left out of `total_bytes`."""

    total_bytes: int | None = None
    free_bytes: int | None = None
    kernel_available_bytes: int | None = None  # MemAvailable
    swap_total_bytes: int | None = None
    swap_free_bytes: int | None = None
    cgroup_limit_bytes: int | None = None
    cgroup_available_bytes: int | None = None
    memory_set_bytes: int | None = None  # nodes that this process' memory set allows
    setting_bytes: int | None = None
    hugepages: tuple[HugePages, ...] = ()
    transparent_hugepages: str | None = None
    lock_limit_bytes: int | None = None  # None: unlimited or unknown

    @property
    def effective_limit_bytes(self) -> int | None:
        """The smallest of machine, control group, memory set and setting."""
        limits = (self.total_bytes, self.cgroup_limit_bytes, self.memory_set_bytes, self.setting_bytes)
        return min((limit for limit in limits if limit is not None), default=None)

    @property
    def available_bytes(self) -> int | None:
        """What can be allocated now without swapping, never above the effective limit."""
        now = self.kernel_available_bytes if self.kernel_available_bytes is not None else self.free_bytes
        bounds = (now, self.cgroup_available_bytes, self.effective_limit_bytes)
        return None if now is None else min(bound for bound in bounds if bound is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cgroup(Facts):
    version: str | None = None  # "1", "2", "hybrid"
    path: str | None = None
    memory_limit_bytes: int | None = None  # None: no limit
    memory_high_bytes: int | None = None
    memory_used_bytes: int | None = None
    memory_reclaimable_bytes: int | None = None
    cpu_quota_cpus: float | None = None
    cpuset_cpus: tuple[int, ...] | None = None
    cpuset_mems: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk(Facts):
    path: str
    mount: str | None = None
    device: str | None = None
    filesystem: str | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    read_only: bool | None = None
    rotational: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    host: Host = field(default_factory=Host)
    cpu: Cpu = field(default_factory=Cpu)
    numa: tuple[NumaNode, ...] = ()
    memory: Memory = field(default_factory=Memory)
    cgroup: Cgroup = field(default_factory=Cgroup)
    accelerators: tuple[Accelerator, ...] = ()
    disks: tuple[Disk, ...] = ()
    notes: tuple[Note, ...] = ()
    as_of: datetime = field(default_factory=lambda: datetime.now(UTC))
    schema: int = SCHEMA

    @property
    def usable_accelerators(self) -> tuple[Accelerator, ...]:
        return tuple(device for device in self.accelerators if device.usable)

    def to_json(self, indent: int | None = 2) -> str:
        return json.dumps(encode(self), indent=indent, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Machine:
        """Read what `to_json` wrote.

        Raises: ValueError if it is not JSON of this schema, naming the key
        """
        data = json.loads(text)
        if isinstance(data, dict) and data.get("schema") != SCHEMA:
            raise ValueError(f"machine description has schema {data.get('schema')!r}; this version reads {SCHEMA}")
        return decode(cls, data)


__all__ = [
    "Accelerator", "Cgroup", "CoreKind", "Cpu", "Disk", "Host", "HugePages", "Machine", "Memory", "Note", "NumaNode",
    "Severity", "State", "Vendor",
]  # fmt: skip
