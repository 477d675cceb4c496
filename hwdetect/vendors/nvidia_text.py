"""`nvidia-smi -q`: the same facts as the XML, as indented `Key : value` lines; and the tools that copied the form."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from hwdetect.accelerator import Accelerator, DeviceProcess, Vendor
from hwdetect.report import Report, checked_memory, unique
from hwdetect.text import integer, known, number, pci_address, sized
from hwdetect.vendors import boxed, nvidia_csv

_GPU = re.compile(r"^(?:GPU|XPU|PPU)\d{0,4} ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])\s*$")
# What else than "GPU" the copies write where it stands; their sections differ in two names
_WORD = re.compile(r"^(?:XPU|PPU)(?= )")
_NAMES = {"Memory Usage": "FB Memory Usage", "Ecc Mode": "ECC Mode", "Xpu": "Gpu", "Ppu": "Gpu"}
_COPIES = (
    (Vendor.MTHREADS, re.compile(r"MTT S\d|MTBios")),
    (Vendor.ILUVATAR, re.compile(r"IXSMI|IX-ML|Iluvatar")),
    (Vendor.KUNLUNXIN, re.compile(r"^XPU [0-9A-Fa-f]{4,8}:|XPU-RT Version|KUNLUNXIN", re.MULTILINE)),
    (Vendor.THEAD, re.compile(r"^PPU [0-9A-Fa-f]{4,8}:|PPU-ZW", re.MULTILINE)),
)


def looks_like(text: str) -> bool:
    opened = re.search(r"^(?:GPU|XPU|PPU) [0-9A-Fa-f]{8}:", text, re.MULTILINE)
    return "NVSMI LOG" in text or bool(opened and "Memory Usage" in text)


_COUNTS = ("Attached GPUs", "Attached XPUs", "Attached PPUs")
_RUNTIMES = {
    Vendor.KUNLUNXIN: ("XPU-RT Version", "XPU-RT"),
    Vendor.ILUVATAR: ("CUDA Version", "CUDA API"),
    Vendor.THEAD: ("CUDA Version", "CUDA API"),
}


@dataclass
class Block:
    """One GPU's lines as paths: ("FB Memory Usage", "Total") -> text. The first of equal paths wins."""

    address: str
    values: dict[tuple[str, ...], str] = field(default_factory=dict)

    def value(self, *path: str) -> str | None:
        return known(self.values.get(path))


def parse(text: str, source: str) -> Report:
    common, blocks = _blocks(text)
    driver = known(common.get("Driver Version"))
    vendor = next((maker for maker, mark in _COPIES if mark.search(text)), Vendor.NVIDIA)
    key, label = _RUNTIMES.get(vendor, ("CUDA Version", "CUDA"))
    version = known(common.get(key))
    runtime = f"{label} {version}" if version else None
    devices = unique(_device(block, n, source, vendor) for n, block in enumerate(blocks))
    return Report(
        source=source,
        vendor=vendor,
        devices=tuple(d.with_facts(source, driver_version=driver, runtime_version=runtime) for d in devices),
        driver_version=driver,
        runtime_version=runtime,
        expected_devices=integer(next((common[key] for key in _COUNTS if key in common), None)),
    )


def _blocks(text: str) -> tuple[dict[str, str], list[Block]]:
    common: dict[str, str] = {}
    blocks: dict[str, Block] = {}
    current: Block | None = None
    path: list[tuple[int, str]] = []
    for line in text.splitlines():
        opened = _GPU.match(line)
        if opened:
            current = blocks.setdefault(opened.group(1).lower(), Block(opened.group(1)))
            path = []
            continue
        indent = len(line) - len(line.lstrip())
        key, colon, value = line.strip().partition(" : ")
        if not key:
            continue
        while path and path[-1][0] >= indent:
            path.pop()
        name = _WORD.sub("GPU", key.strip().removesuffix(":").strip())
        name = _NAMES.get(name, name)
        if not colon:
            path.append((indent, name))
        elif current is None:
            common.setdefault(name, value.strip())
        else:
            current.values.setdefault((*(step for _, step in path), name), value.strip())
            path.append((indent, name))
    return common, list(blocks.values())


def _device(block: Block, position: int, source: str, vendor: Vendor) -> Accelerator:
    ids = (block.value("PCI", "Device Id") or "").removeprefix("0x")
    minor = integer(block.value("Minor Number"))
    power = ("GPU Power Readings", "Power Readings")
    draws = [
        block.value(part, name)
        for part in power
        for name in ("Instantaneous Power Draw", "Average Power Draw", "Power Draw")
    ]
    limits = [
        block.value(part, name)
        for part in power
        for name in ("Current Power Limit", "Power Limit", "Enforced Power Limit")
    ]
    link = ("PCI", "GPU Link Info")
    device = checked_memory(
        Accelerator.of(
            source,
            vendor=vendor,
            index=position,
            name=boxed.product(block.value("Product Name"), vendor),
            uuid=block.value("GPU UUID"),
            pci_address=pci_address(block.address),
            pci_id=f"{ids[4:]}:{ids[:4]}".lower() if re.fullmatch(r"[0-9A-Fa-f]{4}10[Dd][Ee]", ids) else None,
            nodes=(f"/dev/nvidia{minor}",) if minor is not None and vendor is Vendor.NVIDIA else None,
            architecture=block.value("Product Architecture"),
            memory_total_bytes=sized(block.value("FB Memory Usage", "Total")),
            memory_used_bytes=sized(block.value("FB Memory Usage", "Used")),
            memory_free_bytes=sized(block.value("FB Memory Usage", "Free")),
            memory_reserved_bytes=sized(block.value("FB Memory Usage", "Reserved")),
            utilisation_percent=number(block.value("Utilization", "GPU") or block.value("Utilization", "Gpu")),
            temperature_c=number(block.value("Temperature", "GPU Current Temp")),
            power_w=next((n for draw in draws if (n := number(draw)) is not None), None),
            power_limit_w=next((n for limit in limits if (n := number(limit)) is not None), None),
            ecc_enabled={"Enabled": True, "Disabled": False}.get(block.value("ECC Mode", "Current") or ""),
            ecc_uncorrected=_uncorrected(block),
            partition_mode={"Enabled": "MIG", "Disabled": "none"}.get(block.value("MIG Mode", "Current") or ""),
            processes=_processes(block),
            pcie_generation=integer(block.value(*link, "PCIe Generation", "Current")),
            pcie_generation_max=integer(block.value(*link, "PCIe Generation", "Max")),
            pcie_width=integer((block.value(*link, "Link Width", "Current") or "").rstrip("x")),
            pcie_width_max=integer((block.value(*link, "Link Width", "Max") or "").rstrip("x")),
        )
    )
    sizes = (block.values.get(("FB Memory Usage", name)) for name in ("Total", "Used"))
    return nvidia_csv.marked_broken(device, source, *sizes)


def _uncorrected(block: Block) -> int | None:
    counts = [
        integer(value)
        for path, value in block.values.items()
        if len(path) >= 3 and path[:2] == ("ECC Errors", "Volatile") and "Uncorrectable" in path[2]
    ]
    measured = [count for count in counts if count is not None]
    return sum(measured) if measured else None


def _processes(block: Block) -> tuple[DeviceProcess, ...] | None:
    said = block.values.get(("Processes",))
    pids = {
        path: int(value)
        for path, value in block.values.items()
        if path[0] == "Processes"
        and path[-1] == "Process ID"
        and value.isascii()
        and value.isdigit()
        and len(value) < 11
    }
    if not pids:
        return () if said is not None and known(said) is None else None
    return tuple(DeviceProcess(pid) for pid in dict.fromkeys(pids.values()))
