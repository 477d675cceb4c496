"""NVIDIA Jetson: tegrastats lines and the device tree; its GPU's memory is the machine's."""

from __future__ import annotations

import re

from hwdetect.accelerator import Accelerator, Vendor
from hwdetect.machine import Cpu, Memory
from hwdetect.report import Report
from hwdetect.text import MIB, number
from hwdetect.tree import Tree, line

_RAM = re.compile(r"(?:^|\s)RAM (\d{1,9})/(\d{1,9})([KMG]?B)\b")
_SWAP = re.compile(r"(?:^|\s)SWAP (\d{1,9})/(\d{1,9})MB")
_CPUS = re.compile(r"(?:^|\s)CPU \[([^\]]*)\]?")
_GPU = re.compile(r"\bGR3D(?:_FREQ)? (\d{1,3})%")
_TEMPERATURE = re.compile(r"\b(?:gpu|GPU)@(-?\d+(?:\.\d+)?)C")
_JUNCTION = re.compile(r"\btj@(-?\d+(?:\.\d+)?)C")
_POWER = re.compile(r"\b(?:VDD_IN|VIN_SYS_5V0|POM_5V_IN) (\d{1,7})(?:mW)?")


def looks_like(text: str) -> bool:
    return bool(_RAM.search(text)) and ("GR3D" in text or "EMC_FREQ" in text or "CPU [" in text)


def parse(text: str, source: str) -> Report:
    """The last complete line: tegrastats prints one a second."""
    lines = [entry for entry in text.splitlines() if _RAM.search(entry)]
    if not lines:
        return Report(source=source, vendor=Vendor.NVIDIA)
    entry = lines[-1]
    ram, swap, cpus = _RAM.search(entry), _SWAP.search(entry), _CPUS.search(entry)
    used = int(ram.group(1)) * MIB if ram else None
    total = int(ram.group(2)) * MIB if ram else None
    heat = _TEMPERATURE.search(entry) or _JUNCTION.search(entry)
    busy, power = _GPU.search(entry), _POWER.search(entry)
    count = len([part for part in cpus.group(1).split(",") if part.strip()]) if cpus else None
    trusted = used is not None and total is not None and used <= total
    device = Accelerator.of(
        source,
        vendor=Vendor.NVIDIA,
        index=0,
        name="NVIDIA Tegra integrated GPU",
        unified=True,
        memory_total_bytes=total if trusted else None,
        memory_used_bytes=used if trusted else None,
        utilisation_percent=number(busy.group(1)) if busy else None,
        temperature_c=number(heat.group(1)) if heat else None,
        power_w=int(power.group(1)) / 1000 if power else None,
    )
    memory = Memory.of(
        source,
        total_bytes=total if trusted else None,
        kernel_available_bytes=total - used if trusted and total is not None and used is not None else None,
        swap_total_bytes=int(swap.group(2)) * MIB if swap else None,
        swap_free_bytes=max(0, int(swap.group(2)) - int(swap.group(1))) * MIB if swap else None,
    )
    cpu = Cpu.of(source, logical_cpus=count) if count else None
    return Report(source=source, vendor=Vendor.NVIDIA, devices=(device,), memory=memory, cpu=cpu)


def from_tree(tree: Tree) -> Accelerator | None:
    """The integrated GPU of a Tegra: it is on no PCI bus, so the device tree and its nodes are the evidence."""
    model = line(tree, "/proc/device-tree/model")
    compatible = (tree.read("/proc/device-tree/compatible") or "").replace("\0", " ")
    nodes = tuple(p for p in ("/dev/nvhost-gpu", "/dev/nvgpu/igpu0", "/dev/nvmap") if tree.exists(p))
    if "nvidia,tegra" not in compatible:
        return None
    device = Accelerator.of(
        "/proc/device-tree", vendor=Vendor.NVIDIA, index=0, name=f"{model or 'NVIDIA Tegra'} GPU", unified=True
    )
    return device.with_facts("/dev", nodes=nodes) if nodes else device
