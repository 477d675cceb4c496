"""Links between NVIDIA GPUs: `topo -m`, `topo -p2p`, `nvlink --status`; and the list `nvidia-smi -L`."""

from __future__ import annotations

import re

from hwdetect.accelerator import Accelerator, Link, LinkKind, Partition, Vendor
from hwdetect.machine import Note, Severity
from hwdetect.report import Report, unique
from hwdetect.text import number
from hwdetect.vendors import boxed, matrix, nvidia_table

_GPU = re.compile(r"^(?:GPU|XPU|PPU) (\d{1,4}): (.+?)(?: \(UUID: ([^)]*)\)?)?\s*$")
_MIG = re.compile(r"^\s+MIG ((?:\d+c\.)?\d+g\.\d+gb\S*)\s+Device\s+(\d{1,3})\s*:(?:\s*\(UUID: ([^)]*)\)?)?")
# Tools that print the same list
_COPIES = (
    (Vendor.KUNLUNXIN, re.compile(r"^XPU \d+: |^xpu-smi\b", re.MULTILINE)),
    (Vendor.THEAD, re.compile(r"^PPU \d+: |^ppu-smi\b", re.MULTILINE)),
    (Vendor.ILUVATAR, re.compile(r"Iluvatar|^ixsmi\b", re.MULTILINE)),
    (Vendor.MTHREADS, re.compile(r"MTT S\d|^mthreads-gmi\b", re.MULTILINE)),
)
_LANE = re.compile(r"^\s*Link (\d{1,3}):\s*(.+?)\s*$")


def looks_like_topology(text: str) -> bool:
    return bool(re.search(r"^\s*GPU0\s+(?:X|GPU1|CPU)\b", text, re.MULTILINE))


def looks_like_list(text: str) -> bool:
    return bool(re.search(r"^(?:GPU|XPU|PPU) \d+: .+\(UUID", text, re.MULTILINE))


def parse_topology(text: str, source: str) -> Report:
    """Devices with links and affinity only: their names come from elsewhere."""
    vendor = next((maker for maker, mark in _COPIES if mark.search(source)), Vendor.NVIDIA)
    found = matrix.parse(text)
    devices = [
        Accelerator.of(
            source,
            vendor=vendor,
            index=row,
            links=found.links(row),
            cpu_affinity=found.cpus.get(row),
            numa_node=found.numa.get(row),
        )
        for row in found.devices
    ]
    return Report(source=source, vendor=vendor, devices=tuple(devices))


def parse_list(text: str, source: str) -> Report:
    """`nvidia-smi -L` and `nvidia-smi nvlink -s`: both begin each GPU with the same line."""
    vendor = next((maker for maker, mark in _COPIES if mark.search(text) or mark.search(source)), Vendor.NVIDIA)
    gpus: dict[int, tuple[str, str | None]] = {}
    partitions: dict[int, dict[int, Partition]] = {}
    lanes: dict[int, dict[int, float | None]] = {}
    notes: list[Note] = []
    current: int | None = None
    for line in text.splitlines():
        gpu, mig, lane = _GPU.match(line), _MIG.match(line), _LANE.match(line)
        if gpu:
            current = int(gpu.group(1))
            gpus.setdefault(current, (gpu.group(2), gpu.group(3)))
        elif mig and current is not None:
            index = int(mig.group(2))
            slot = Partition(index=index, profile=mig.group(1), uuid=mig.group(3))
            partitions.setdefault(current, {}).setdefault(index, slot)
        elif lane and current is not None:
            speed = number(lane.group(2)) if "inactive" not in lane.group(2).lower() else None
            lanes.setdefault(current, {}).setdefault(int(lane.group(1)), speed)
        elif "unable to retrieve nvlink information" in line.lower() and "inactive" in line.lower():
            if current is not None:
                lanes.setdefault(current, {})  # it has links, and none is up
        elif "not supported" in line.lower() and "nvlink" in line.lower():
            notes.append(Note(Severity.INFO, source, f"links unknown: {line.strip()}"))
    devices = [
        Accelerator.of(
            source,
            vendor=vendor,
            index=index,
            name=boxed.product(name, vendor),
            uuid=uuid,
            partitions=tuple(partitions.get(index, {}).values()) or None,
            partition_mode="MIG" if index in partitions else None,
            links=_bonded(lanes[index]) if index in lanes else None,
        )
        for index, (name, uuid) in gpus.items()
    ]
    problems = tuple(nvidia_table.problems_of(text))
    return Report(source=source, vendor=vendor, devices=unique(devices), problems=problems, notes=tuple(notes))


def _bonded(lanes: dict[int, float | None]) -> tuple[Link, ...]:
    """One link whose far end this output does not name: the active lanes and their summed speed."""
    speeds = [speed for speed in lanes.values() if speed is not None]
    if not speeds:
        return ()
    return (
        Link(
            None, LinkKind.NVLINK, f"NV{len(speeds)}", lanes=len(speeds), bytes_per_s=int(sum(speeds) * 1_000_000_000)
        ),
    )
