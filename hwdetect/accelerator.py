"""What an accelerator is: its facts, state, capabilities, links and partitions. Imports nothing of Bayard but facts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from hwdetect.facts import Facts


class Vendor(StrEnum):
    NVIDIA = "nvidia"
    AMD = "amd"
    INTEL = "intel"
    GAUDI = "gaudi"
    ASCEND = "ascend"
    MTHREADS = "mthreads"
    HYGON = "hygon"
    CAMBRICON = "cambricon"
    ILUVATAR = "iluvatar"
    METAX = "metax"
    ENFLAME = "enflame"
    KUNLUNXIN = "kunlunxin"
    THEAD = "thead"
    BIREN = "biren"


class State(StrEnum):
    """Whether work can be put on the device now; anything but `usable` and `busy` carries a reason and a fix."""

    USABLE = "usable"
    BUSY = "busy"  # usable, but another process holds a good part of its memory
    DRIVER_MISSING = "driver_missing"
    VERSION_MISMATCH = "version_mismatch"
    NO_PERMISSION = "no_permission"
    NOT_EXPOSED = "not_exposed"  # present on the bus, its nodes not given to this container
    UNHEALTHY = "unhealthy"
    LOST = "lost"
    UNKNOWN = "unknown"


class LinkKind(StrEnum):
    SELF = "self"
    NVLINK = "nvlink"
    XGMI = "xgmi"
    HCCS = "hccs"
    METAXLINK = "metaxlink"
    MTLINK = "mtlink"
    VENDOR = "vendor"  # a direct link whose name the source does not say
    PIX = "pix"  # one PCIe switch
    PXB = "pxb"  # several PCIe switches
    PHB = "phb"  # the host bridge
    NODE = "node"  # host bridges of one NUMA node
    SYS = "sys"  # between sockets
    PCIE = "pcie"  # PCIe, distance not said
    UNKNOWN = "unknown"

    @property
    def is_direct(self) -> bool:
        return self in _DIRECT


_DIRECT = frozenset(
    {LinkKind.NVLINK, LinkKind.XGMI, LinkKind.HCCS, LinkKind.METAXLINK, LinkKind.MTLINK, LinkKind.VENDOR}
)


@dataclass(frozen=True, slots=True)
class Link:
    """The way to another accelerator; `peer` is its index within the vendor, None if the far end is not visible."""

    peer: int | None
    kind: LinkKind
    label: str
    lanes: int | None = None
    bytes_per_s: int | None = None  # measured, or printed by a tool: the sum over lanes
    peer_access: bool | None = None


@dataclass(frozen=True, slots=True)
class Partition:
    """A slice of a device (MIG instance, compute partition, vNPU). Slices with equal `memory_group` share memory."""

    index: int
    profile: str | None = None  # as the vendor names the slice: "1g.10gb"
    instance: str | None = None  # as the tool numbers it: "GI 2 CI 0"
    uuid: str | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    memory_group: str | None = None
    compute_units: int | None = None


@dataclass(frozen=True, slots=True)
class DeviceProcess:
    """A process that a tool shows on the device."""

    pid: int
    name: str | None = None
    memory_bytes: int | None = None
    compute: bool | None = None  # False: graphics only


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What the architecture can do; None where no evidence was found."""

    bf16: bool | None = None
    fp8: bool | None = None
    fp4: bool | None = None
    int8: bool | None = None
    triton: bool | None = None
    graphs: bool | None = None
    peer_access: bool | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator(Facts):
    """One device that the software above would open as one device."""

    vendor: Vendor
    index: int | None = None
    name: str | None = None
    pci_address: str | None = None
    pci_id: str | None = None
    subsystem: str | None = None
    uuid: str | None = None
    card: int | None = None  # board or NPU number where one board has several devices
    chip: int | None = None  # number on that board
    physical_id: int | None = None
    virtual: bool | None = None  # a slice that the container sees as a device
    nodes: tuple[str, ...] = ()
    kernel_driver: str | None = None
    driver_version: str | None = None
    runtime_version: str | None = None
    architecture: str | None = None
    compute_capability: str | None = None
    compute_units: int | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    memory_free_bytes: int | None = None
    memory_reserved_bytes: int | None = None
    memory_used_percent: float | None = None
    unified: bool | None = None
    utilisation_percent: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    ecc_enabled: bool | None = None
    ecc_uncorrected: int | None = None
    health: str | None = None
    partition_mode: str | None = None  # "MIG", "NPS1/CPX", "none"
    partitions: tuple[Partition, ...] = ()
    processes: tuple[DeviceProcess, ...] | None = None  # None: not said; (): none
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    numa_node: int | None = None
    cpu_affinity: tuple[int, ...] = ()
    links: tuple[Link, ...] | None = None  # None: not said; (): none
    capabilities: Capabilities | None = None
    state: State = State.UNKNOWN
    reason: str = ""
    fix: str = ""
    warnings: tuple[str, ...] = ()

    @property
    def usable(self) -> bool:
        return self.state in (State.USABLE, State.BUSY)

    @property
    def available_bytes(self) -> int | None:
        """Free now, from what is known: the tool's own figure, else total less used and reserved."""
        if self.memory_free_bytes is not None:
            return self.memory_free_bytes
        if self.memory_total_bytes is None or self.memory_used_bytes is None:
            return None
        return max(0, self.memory_total_bytes - self.memory_used_bytes - (self.memory_reserved_bytes or 0))
