"""Moore Threads: mthreads-gmi's table in its two widths, and `mthreads-gmi -q --json`."""

from __future__ import annotations

import re
from typing import Any

from hwdetect import jsontext
from hwdetect.accelerator import Accelerator, DeviceProcess, Vendor
from hwdetect.report import Report, checked_memory, unique
from hwdetect.text import integer, known, mib, number, pci_address
from hwdetect.vendors import nvidia_text

_FIRST = re.compile(r"^(\d{1,4})\s+(\S[^|]*?)\s*\|([^|]*)\|\s*(\S+)\s+(\S.*?)\s*$")
_MEMORY = re.compile(r"(\d+)\s*MiB\s*\(\s*(\d+)\s*MiB\s*\)")
_LANES = re.compile(r"(\d{1,2})x\s*\((\d{1,2})x\)")
_PROCESS = re.compile(r"^(\d{1,4})\s+(\d{1,10})\s+(\S.*?)\s+(\d+)\s*MiB\s*$")


def looks_like(text: str) -> bool:
    return "mthreads-gmi" in text or "MTT S" in text


def parse(text: str, source: str) -> Report:
    if '"GPU"' in text and "{" in text:
        return _parse_json(text, source)
    if "Product Name" in text and "mthreads-gmi:" not in text:
        return nvidia_text.parse(text, source)  # `-q`: the form that others have copied too
    driver = re.search(r"Driver Version\s*:\s*(\S+)", text)
    tool = re.search(r"mthreads-gmi\s*:\s*(\S+)", text)
    head, _, tail = text.partition("Processes:")
    found: dict[int, list[str]] = {}
    current: list[str] | None = None
    for line in head.splitlines():
        first = _FIRST.match(line)
        if first:
            current = []
            found.setdefault(int(first.group(1)), current)
        if re.match(r"^[+\-=]{3,}", line):
            current = None
        elif current is not None and len(current) < 4 and line.strip():
            current.append(line)
    processes = _processes(tail) if tail else None
    version = known(driver.group(1)) if driver else None
    devices = [_device(lines, source, processes) for lines in found.values()]
    return Report(
        source=source,
        vendor=Vendor.MTHREADS,
        devices=tuple(d.with_facts(source, driver_version=version) for d in unique(devices)),
        driver_version=version,
        runtime_version=f"mthreads-gmi {tool.group(1)}" if tool else None,
    )


def _device(lines: list[str], source: str, processes: dict[int, list[DeviceProcess]] | None) -> Accelerator:
    first = _FIRST.match(lines[0])
    if first is None:
        raise AssertionError("rows begin with a line that matched")
    index = int(first.group(1))
    memory = _MEMORY.search(lines[0])
    second = lines[1].split("|") if len(lines) > 1 else []
    third = lines[2].split("|") if len(lines) > 2 else []
    lanes = _LANES.search(second[1]) if len(second) > 1 else None
    kind = second[0].split() if second else []
    ecc = known(third[-1]) if len(third) > 1 else None
    return checked_memory(
        Accelerator.of(
            source,
            vendor=Vendor.MTHREADS,
            index=index,
            name=first.group(2),
            pci_address=pci_address(first.group(3)),
            virtual=True if kind and kind[0].lower().startswith("virt") else None,
            memory_total_bytes=int(memory.group(2)) << 20 if memory else None,
            memory_used_bytes=int(memory.group(1)) << 20 if memory else None,
            utilisation_percent=number(first.group(4)) if first.group(4).endswith("%") else None,
            temperature_c=number(second[2]) if len(second) > 2 else None,
            ecc_enabled=True if ecc else None,
            pcie_width=int(lanes.group(1)) if lanes else None,
            pcie_width_max=int(lanes.group(2)) if lanes else None,
            processes=tuple(processes.get(index, ())) if processes is not None else None,
        )
    )


def _processes(text: str) -> dict[int, list[DeviceProcess]]:
    found: dict[int, dict[int, DeviceProcess]] = {}
    for line in text.splitlines():
        row = _PROCESS.match(line)
        if row:
            process = DeviceProcess(int(row.group(2)), row.group(3), int(row.group(4)) << 20)
            found.setdefault(int(row.group(1)), {}).setdefault(process.pid, process)
    return {index: list(by_pid.values()) for index, by_pid in found.items()}


def _parse_json(text: str, source: str) -> Report:
    whole = jsontext.load(text)
    entries = whole.get("GPU") if isinstance(whole, dict) else None
    version = known(jsontext.text_of(whole.get("Driver Version"))) if isinstance(whole, dict) else None
    listed = entries if isinstance(entries, list) else []
    devices = [_json_device(entry, n, source) for n, entry in enumerate(listed) if isinstance(entry, dict)]
    return Report(
        source=source,
        vendor=Vendor.MTHREADS,
        devices=tuple(d.with_facts(source, driver_version=version) for d in unique(devices)),
        driver_version=version,
    )


def _json_device(entry: dict[str, Any], position: int, source: str) -> Accelerator:
    def value(*path: str) -> str | None:
        here: Any = entry
        for key in path:
            # Some keys of this tool end in a blank
            trimmed = {str(k).strip(): v for k, v in here.items()} if isinstance(here, dict) else {}
            here = trimmed.get(key)
        return known(jsontext.text_of(here))

    index = integer(value("Index"))
    return checked_memory(
        Accelerator.of(
            source,
            vendor=Vendor.MTHREADS,
            index=position if index is None else index,
            name=value("Product Name"),
            uuid=value("GPU UUID"),
            pci_address=pci_address(value("PCI", "Bus Id") or value("PCIe", "Bus Id")),
            memory_total_bytes=mib(value("FB Memory Usage", "Total")),
            memory_used_bytes=mib(value("FB Memory Usage", "Used")),
            memory_free_bytes=mib(value("FB Memory Usage", "Free")),
            utilisation_percent=number(value("Utilization", "Gpu")),
            temperature_c=number(value("Temperature", "GPU Current Temp")),
            power_w=number(value("Power Readings", "Power Draw") or value("Power", "Power Draw")),
        )
    )
