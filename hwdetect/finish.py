"""The last look at a device: its state if nothing said it, what to warn about, its capabilities."""

from __future__ import annotations

import re
from collections.abc import Iterable

from hwdetect.accelerator import Accelerator, State, Vendor
from hwdetect.capabilities import capabilities, nvidia_architecture
from hwdetect.pci_ids import PRODUCTS
from hwdetect.report import Problem
from hwdetect.text import MIB

# Drivers and displays hold some memory on an idle card; beyond this share someone works on it
_BUSY_SHARE = 0.15
_BUSY_FLOOR_BYTES = 2048 * MIB
# NVML reports no memory of its own for chips that compute in the host's
_INTEGRATED = re.compile(r"\bGB10\b|nvgpu|\b(?:Orin|Xavier|Thor|Tegra)\b", re.IGNORECASE)
_GOOD_HEALTH = frozenset({"ok", "normal", "healthy", "available", "true", "good", "auto", "none"})


def finish(devices: Iterable[Accelerator], *, usable: bool = True) -> tuple[Accelerator, ...]:
    """Devices with state, warnings and capabilities. `usable`: a tool that listed them could talk to them."""
    return tuple(_finish(device, usable) for device in devices)


def _finish(device: Accelerator, usable: bool) -> Accelerator:
    if device.name is None and device.pci_id in PRODUCTS:
        device = device.with_facts("PCI id", name=PRODUCTS[device.pci_id])
    if device.architecture is None and device.vendor is Vendor.NVIDIA:
        device = device.with_facts("PCI id", architecture=nvidia_architecture(device.pci_id))
    if device.vendor is Vendor.NVIDIA and device.unified is None and device.memory_total_bytes is None:
        device = device.with_facts("product", unified=True if _INTEGRATED.search(device.name or "") else None)
    device = _with_used_percent(device)
    if device.state is State.UNKNOWN and usable:
        device = device.with_facts("derived", state=State.BUSY if is_busy(device) else State.USABLE)
        if device.state is State.BUSY:
            device = device.with_facts("derived", reason=_busy_reason(device), fix=_busy_fix(device))
    warnings = tuple(dict.fromkeys((*device.warnings, *_warnings(device))))
    device = device.with_facts("derived", warnings=warnings) if warnings != device.warnings else device
    return device.with_facts("architecture", capabilities=capabilities(device))


def _with_used_percent(device: Accelerator) -> Accelerator:
    if device.memory_used_percent is None and device.memory_total_bytes and device.memory_used_bytes is not None:
        share = round(100 * device.memory_used_bytes / device.memory_total_bytes, 1)
        return device.with_facts("derived", memory_used_percent=share)
    return device


def is_busy(device: Accelerator) -> bool:
    """Whether another process holds a good part of the memory, whatever the utilisation says at this moment."""
    computing = [p for p in device.processes or () if p.compute and (p.memory_bytes or 0) >= _BUSY_FLOOR_BYTES]
    if computing:
        return True
    if device.unified:
        return False  # the used part is the whole machine's
    if device.memory_used_percent is not None:
        held = device.memory_used_bytes
        return device.memory_used_percent >= 100 * _BUSY_SHARE and (held is None or held >= _BUSY_FLOOR_BYTES)
    return False


def _busy_reason(device: Accelerator) -> str:
    share = device.memory_used_percent
    free = device.available_bytes
    parts = [f"{share:.0f} % of its memory is in use" if share is not None else "other processes hold its memory"]
    if free is not None:
        parts.append(f"{free // MIB} MiB are free")
    names = [f"{p.pid} {p.name or ''}".strip() for p in device.processes or () if p.compute is not False][:3]
    return ", ".join(parts) + (f"; processes {', '.join(names)}" if names else "")


def _busy_fix(device: Accelerator) -> str:
    pids = [str(p.pid) for p in device.processes or () if p.compute is not False][:3]
    return f"stop what uses it (look first: ps -fp {','.join(pids)})" if pids else "stop what uses it"


def _warnings(device: Accelerator) -> Iterable[str]:
    if device.state is State.BUSY:
        yield "in use by other processes"
    if device.ecc_uncorrected:
        yield f"{device.ecc_uncorrected} uncorrected memory errors or events: watch it, or have the card replaced"
    width, widest = device.pcie_width, device.pcie_width_max
    if width and widest and width < widest:
        yield f"PCIe link runs at x{width} of x{widest}: check the slot and the riser"
    said = re.search(r"(?<![\d.])(\d{1,3})\s?GB\b", device.name or "")
    total = device.memory_total_bytes
    if said and total and total < int(said.group(1)) * 1_000_000_000 * 0.8:
        yield f"its name says {said.group(1)} GB and {total // MIB} MiB are visible: a memory limit or a slice"
    if device.health and device.health.lower() not in _GOOD_HEALTH and device.state is not State.UNHEALTHY:
        yield f"health: {device.health}"
    if device.partition_mode == "MIG" and not device.partitions and "partitions" in device.sources:
        yield "MIG is on and there is no instance: sudo nvidia-smi mig -cgi 0 -C"


def with_problems(
    devices: Iterable[Accelerator], problems: Iterable[Problem], vendor: Vendor
) -> tuple[Accelerator, ...]:
    """Put each problem on the device it names, or on every device of the vendor that no tool could list."""
    found = list(devices)
    for problem in problems:
        named = False
        for n, device in enumerate(found):
            if device.vendor is not vendor:
                continue
            if problem.pci_address is not None and device.pci_address != problem.pci_address:
                continue
            if problem.index is not None and device.index != problem.index:
                continue
            if problem.pci_address is None and problem.index is None and device.memory_total_bytes is not None:
                continue
            named = True
            found[n] = device.with_facts("tool", state=problem.state, reason=problem.reason, fix=problem.fix)
        if problem.pci_address is not None and not named:
            found.append(
                Accelerator.of(
                    "tool",
                    vendor=vendor,
                    pci_address=problem.pci_address,
                    state=problem.state,
                    reason=problem.reason,
                    fix=problem.fix,
                )
            )
    return tuple(found)
