"""amd-smi as text: the indented blocks of `list`, `static` and `metric`, and the default table of ROCm 7."""

from __future__ import annotations

import re
from typing import Any

from hwdetect.accelerator import Accelerator, Vendor
from hwdetect.report import Report, checked_memory, unique
from hwdetect.text import integer, known, pci_address
from hwdetect.vendors.amd_json import describe
from hwdetect.vendors.box import cells_of, celsius, percent, sizes, title_value, watts

_GPU = re.compile(r"^GPU: (\d{1,4})\s*$")
_NAMED = re.compile(r"^\s*([0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])\s+(\S.*?)\s*$")
_NUMBERED = re.compile(r"^\s*(\d{1,4})\s+(\d{1,4}|N/A)\s+(\d{1,4}|N/A)\s+(\S+)\s*$")


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
    rocm = title_value(text, "ROCm version")
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
            devices.append(_row(first[0], first[1], numbered, cells[1], source))
            first = None
    runtime = f"ROCm {rocm}" if rocm else None
    found = tuple(d.with_facts(source, driver_version=driver, runtime_version=runtime) for d in unique(devices))
    return Report(source=source, vendor=Vendor.AMD, devices=found, driver_version=driver, runtime_version=runtime)


def _row(named: re.Match[str], upper: str, numbered: re.Match[str], lower: str, source: str) -> Accelerator:
    used, total = sizes(lower) or (None, None)
    draw, limit = watts(upper)
    errors = re.search(r"°?C\s+(\d{1,9})\s", upper)
    compute, _, memory = numbered.group(4).partition("/")
    mode = "/".join(part for part in (known(memory), known(compute)) if part)
    return checked_memory(
        Accelerator.of(
            source,
            vendor=Vendor.AMD,
            index=int(numbered.group(1)),
            name=named.group(2),
            pci_address=pci_address(named.group(1)),
            memory_total_bytes=total,
            memory_used_bytes=used,
            utilisation_percent=percent(lower),
            temperature_c=celsius(upper),
            power_w=draw,
            power_limit_w=limit,
            ecc_uncorrected=integer(errors.group(1)) if errors else None,
            partition_mode=mode or None,
        )
    )
