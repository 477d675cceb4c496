"""Intel GPUs: `xpu-smi discovery -d N` (key : value in a table, or JSON) and the nvidia-like table of xpu-smi 2.x."""

from __future__ import annotations

import csv
import re
from typing import Any

from hwdetect import jsontext
from hwdetect.accelerator import Accelerator, State, Vendor
from hwdetect.report import Report, checked_memory, unique
from hwdetect.text import integer, known, mib, pci_address, size_bytes
from hwdetect.vendors import boxed
from hwdetect.vendors.box import cells_of

_DUMPED = re.compile(r"^Device ID,(?:Device|Vendor|PCI|UUID|SOC|DRM)", re.MULTILINE)


def looks_like(text: str) -> bool:
    marks = ("Intel XPU-SMI", "Intel(R)", '"vendor_name": "Intel')
    return any(mark in text for mark in marks) or bool(_DUMPED.search(text))


def parse(text: str, source: str) -> Report:
    if _DUMPED.search(text):
        return _parse_dump(text, source)
    if '"device_list"' in text or '"device_name"' in text:
        return _parse_json(text, source)
    if "Device Information" in text or "Device Name:" in text:
        return _parse_discovery(text, source)
    return boxed.parse(text, source, boxed.INTEL)


def _parse_discovery(text: str, source: str) -> Report:
    blocks: dict[int, dict[str, str]] = {}
    current: dict[str, str] | None = None
    for _, cells in cells_of(text):
        if cells is None or len(cells) < 2:
            continue
        number_cell = cells[0].strip()
        if number_cell.isascii() and number_cell.isdigit() and len(number_cell) < 5:
            current = blocks.setdefault(int(number_cell), {})
        if current is not None:
            key, colon, value = "|".join(cells[1:]).partition(":")
            if colon:
                current.setdefault(key.strip(), value.strip())
    return _report([_device(index, values, source) for index, values in blocks.items() if values], source)


def _parse_dump(text: str, source: str) -> Report:
    """`xpu-smi discovery --dump N,...`: the table's keys as a heading, then a line for each device."""
    heading: list[str] = []
    blocks: dict[int, dict[str, str]] = {}
    for line in text.splitlines():
        if _DUMPED.match(line):
            heading = line.strip().split(",")
            continue
        try:
            row = next(csv.reader([line]), [])
        except csv.Error:
            row = []
        index = integer(row[0]) if row and heading else None
        if index is not None and len(row) > 1:
            blocks.setdefault(index, dict(zip(heading[1:], (cell.strip() for cell in row[1:]), strict=False)))
    return _report([_device(index, values, source) for index, values in blocks.items()], source)


def _report(devices: list[Accelerator], source: str) -> Report:
    drivers = {d.driver_version for d in devices if d.driver_version}
    return Report(
        source=source,
        vendor=Vendor.INTEL,
        devices=unique(devices),
        driver_version=drivers.pop() if len(drivers) == 1 else None,
    )


def _device(index: int, values: dict[str, str], source: str) -> Accelerator:
    device_id = known(values.get("PCI Device ID")) or ""
    state = known(values.get("Device State"))
    device = Accelerator.of(
        source,
        vendor=Vendor.INTEL,
        index=index,
        name=known(values.get("Device Name")),
        uuid=known(values.get("SOC UUID") or values.get("UUID")),
        pci_address=pci_address(values.get("PCI BDF Address")),
        pci_id=f"8086:{device_id[2:].lower()}" if re.fullmatch(r"0x[0-9a-fA-F]{4}", device_id) else None,
        driver_version=known(values.get("Driver Version")),
        compute_units=integer(values.get("Number of EUs")),
        memory_total_bytes=size_bytes(values.get("Memory Physical Size")),
        ecc_enabled={"enabled": True, "disabled": False}.get((values.get("ECC State") or "").lower()),
        health=state,
        pcie_generation_max=integer(values.get("PCIe Generation")),
        pcie_width_max=integer(values.get("PCIe Max Link Width")),
    )
    if state and state.lower() != "normal":
        device = device.with_facts(
            source, state=State.UNHEALTHY, reason=f"xpu-smi calls its state {state}", fix="xpu-smi health -d N"
        )
    return checked_memory(device)


def _parse_json(text: str, source: str) -> Report:
    whole = jsontext.load(text)
    entries: list[Any] = []
    if isinstance(whole, dict):
        listed = whole.get("device_list")
        entries = listed if isinstance(listed, list) else [whole]
    devices = [_json_device(entry, source) for entry in entries if isinstance(entry, dict)]
    return Report(source=source, vendor=Vendor.INTEL, devices=unique(devices))


def _json_device(entry: dict[str, Any], source: str) -> Accelerator:
    def value(name: str) -> str | None:
        return known(jsontext.text_of(entry.get(name)))

    device_id = value("pci_device_id") or ""
    return checked_memory(
        Accelerator.of(
            source,
            vendor=Vendor.INTEL,
            index=integer(value("device_id")),
            name=value("device_name"),
            uuid=value("uuid"),
            pci_address=pci_address(value("pci_bdf_address")),
            pci_id=f"8086:{device_id[2:].lower()}" if re.fullmatch(r"0x[0-9a-fA-F]{4}", device_id) else None,
            driver_version=value("driver_version"),
            memory_total_bytes=mib(value("memory_physical_size_MiB")) or integer(value("memory_physical_size_byte")),
            memory_free_bytes=integer(value("memory_free_size_byte")),
            compute_units=integer(value("number_of_eus")),
        )
    )
