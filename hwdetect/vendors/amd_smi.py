"""amd-smi as text: the indented blocks of `list`, `static` and `metric`, and the default table of ROCm 7."""

from __future__ import annotations

import re
from typing import Any

from hwdetect.accelerator import Accelerator, DeviceProcess, Vendor
from hwdetect.report import Report, checked_memory, unique
from hwdetect.text import integer, known, pci_address, size_bytes
from hwdetect.vendors.amd_json import describe
from hwdetect.vendors.box import cells_of, celsius, percent, sizes, title_value, watts

_GPU = re.compile(r"^GPU: (\d{1,4})\s*$")
_NAMED = re.compile(r"^\s*([0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])\s+(\S.*?)\s*$")
_NUMBERED = re.compile(r"^\s*(\d{1,4})\s+(\d{1,4}|N/A)\s+(\d{1,4}|N/A)\s+(\S+)\s*$")
# GPU, PID, name, memory of the host that it maps (GTT), memory of the card
_PROCESS = re.compile(r"^\s*(\d{1,4})\s+(\d{1,10})\s+(\S.*?)\s+[\d.]+ [KMG]?B\s+([\d.]+ [KMG]?B)\s")


def looks_like(text: str) -> bool:
    blocks = re.search(r"^GPU: \d+\s*\n\s+(?:BDF|ASIC|BUS|VRAM|USAGE|MEM_USAGE)\b", text, re.MULTILINE)
    return blocks is not None or "AMD-SMI " in text


def parse(text: str, source: str) -> Report:
    return _parse_table(text, source) if "AMD-SMI " in text else _parse_blocks(text, source)


def _parse_blocks(text: str, source: str) -> Report:
    """The same tree as the JSON, by indentation: keys in lower case, the first of equal paths."""
    entries: dict[int, dict[str, Any]] = {}
    path: list[tuple[int, dict[str, Any]]] = []
    for line in text.splitlines():
        opened = _GPU.match(line)
        if opened:
            entry = entries.setdefault(int(opened.group(1)), {"gpu": int(opened.group(1))})
            path = [(-1, entry)]
            continue
        key, colon, value = line.strip().partition(":")
        if not colon or not path:
            continue
        indent = len(line) - len(line.lstrip())
        while len(path) > 1 and path[-1][0] >= indent:
            path.pop()
        place, name = path[-1][1], key.strip().lower()
        if value.strip():
            place.setdefault(name, value.strip())
        else:
            below = place.setdefault(name, {})
            if isinstance(below, dict):
                path.append((indent, below))
    devices = unique(describe(entry, source) for entry in entries.values() if len(entry) > 1)
    drivers = {device.driver_version for device in devices if device.driver_version}
    return Report(
        source=source,
        vendor=Vendor.AMD,
        devices=devices,
        driver_version=drivers.pop() if len(drivers) == 1 else None,
    )


def _parse_table(text: str, source: str) -> Report:
    driver = title_value(text, "amdgpu version", "amdgpu driver")
    if driver and not driver[0].isdigit():
        driver = None  # the kernel's own driver: a text cut to the column's width
    rocm = title_value(text, "ROCm version")
    processes = _processes(text)
    devices: list[Accelerator] = []
    first: tuple[re.Match[str], str] | None = None
    for _, cells in cells_of(text):
        if cells is None or len(cells) < 2:
            first = None
            continue
        named, numbered = _NAMED.match(cells[0]), _NUMBERED.match(cells[0])
        if named:
            first = (named, cells[1])
        elif numbered and first is not None:
            device = _row(first[0], first[1], numbered, cells[1], source)
            if processes is not None:
                device = device.with_facts(source, processes=tuple(processes.get(device.index or 0, ())))
            devices.append(device)
            first = None
    runtime = f"ROCm {rocm}" if rocm else None
    found = tuple(d.with_facts(source, driver_version=driver, runtime_version=runtime) for d in unique(devices))
    return Report(source=source, vendor=Vendor.AMD, devices=found, driver_version=driver, runtime_version=runtime)


def _processes(text: str) -> dict[int, list[DeviceProcess]] | None:
    """Processes by card from the table below; None where it is not there, or the user may not read it."""
    if not re.search(r"^\s*\|\s*Processes", text, re.MULTILINE):
        return None
    found: dict[int, dict[int, DeviceProcess]] = {}
    for section, cells in cells_of(text):
        row = _PROCESS.match(cells[0]) if cells and len(cells) == 1 and section == "processes" else None
        if row:
            process = DeviceProcess(int(row.group(2)), known(row.group(3)), size_bytes(row.group(4)), True)
            found.setdefault(int(row.group(1)), {}).setdefault(process.pid, process)
    return {card: list(by_pid.values()) for card, by_pid in found.items()}


def _row(named: re.Match[str], upper: str, numbered: re.Match[str], lower: str, source: str) -> Accelerator:
    used, total = sizes(lower) or (None, None)
    draw, limit = watts(upper)
    alone = re.search(r"(?<![\w./])(\d+(?:\.\d+)?) ?W\s*$", upper) if limit is None else None
    errors = re.search(r"°?C\s+(\d{1,9})\s", upper)
    # "SPX/NPS1", or N/A for cards that cannot be cut
    compute, _, memory = (known(numbered.group(4)) or "").partition("/")
    mode = "/".join(part for part in (known(memory), known(compute)) if part)
    return checked_memory(
        Accelerator.of(
            source,
            vendor=Vendor.AMD,
            index=int(numbered.group(1)),
            name=known(named.group(2).removeprefix("...")),
            pci_address=pci_address(named.group(1)),
            memory_total_bytes=total,
            memory_used_bytes=used,
            utilisation_percent=percent(lower),
            temperature_c=celsius(upper),
            power_w=float(alone.group(1)) if alone else draw,
            power_limit_w=limit or None,  # 0 is what an APU without a limit prints
            ecc_uncorrected=integer(errors.group(1)) if errors else None,
            partition_mode=mode or None,
        )
    )
