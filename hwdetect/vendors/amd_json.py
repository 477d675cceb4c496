"""AMD's `rocm-smi --json` and `--csv` of ROCm 4 to 6 (keys change by version), `amd-smi list|static|metric --json`."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from typing import Any

from hwdetect import jsontext
from hwdetect.accelerator import Accelerator, Vendor
from hwdetect.machine import Note, Severity
from hwdetect.report import Report, checked_memory, unique
from hwdetect.text import integer, known, mib, number, pci_address

_CARD = re.compile(r"^card(\d{1,4})$")
_CSV = re.compile(r"^(?:device|gpu),\s*[A-Za-z]", re.IGNORECASE | re.MULTILINE)
_HEX = re.compile(r"^0x[0-9a-fA-F]{1,8}$")


def looks_like(text: str) -> bool:
    listed = '"asic"' in text or ('"gpu"' in text and '"bdf"' in text)
    return listed or bool(re.search(r'"card\d+"\s*:', text) or _CSV.search(text))


def parse(text: str, source: str) -> Report:
    if "{" not in text and "[" not in text[:1] and _CSV.search(text):
        return _parse_csv(text, source)
    whole = jsontext.load(text)
    notes: list[Note] = []
    cards: Mapping[str, Any]
    if isinstance(whole, dict) and any(_CARD.match(str(key)) for key in whole):
        cards = whole
    elif isinstance(whole, list) or (isinstance(whole, dict) and "gpu_data" in whole):
        return _parse_amd_smi(whole, source)
    else:
        cards = jsontext.members(text)
        notes.append(Note(Severity.WARNING, source, "the JSON is damaged: only complete entries were read"))
    common = cards.get("system")
    driver = known(jsontext.text_of(common.get("Driver version"))) if isinstance(common, dict) else None
    devices = [
        _rocm_card(int(found.group(1)), card, source)
        for key, card in cards.items()
        if (found := _CARD.match(str(key))) and isinstance(card, dict)
    ]
    return Report(
        source=source,
        vendor=Vendor.AMD,
        devices=tuple(d.with_facts(source, driver_version=driver) for d in unique(devices)),
        notes=tuple(notes),
        driver_version=driver,
    )


def _parse_csv(text: str, source: str) -> Report:
    """A heading of the JSON's keys, then a line for each card; tables of other keys may follow."""
    heading: list[str] = []
    cards: dict[int, dict[str, Any]] = {}
    for line in text.splitlines():
        try:
            row = next(csv.reader([line]), [])
        except csv.Error:
            row = line.split(",")
        if _CSV.match(line):
            heading = row
            continue
        found = re.fullmatch(r"(?:card)?(\d{1,4})", row[0].strip()) if row and heading else None
        if found and len(row) > 1:
            for key, value in zip(heading[1:], row[1:], strict=False):
                cards.setdefault(int(found.group(1)), {}).setdefault(key, value.strip())
    devices = unique(_rocm_card(index, card, source) for index, card in cards.items())
    return Report(source=source, vendor=Vendor.AMD, devices=devices)


def _rocm_card(index: int, card: dict[str, Any], source: str) -> Accelerator:
    lowered = {str(key).strip().lower(): jsontext.text_of(value) for key, value in card.items()}

    def value(*names: str) -> str | None:
        return next((found for name in names if (found := known(lowered.get(name)))), None)

    device_id = value("device id", "gpu id")
    names = (value("card series"), value("device name"), value("card model"))
    # Some versions put an id where the name belongs: an id is no name
    name = next((n for n in names if n and not _HEX.match(n)), None)
    unique_id = value("unique id")
    numa = integer(value("(topology) numa node"))
    rev = [f"{part:04x}" for part in (0x1002, int(device_id, 16))] if device_id and _HEX.match(device_id) else None
    return checked_memory(
        Accelerator.of(
            source,
            vendor=Vendor.AMD,
            index=index,
            name=name,
            uuid=unique_id if unique_id and unique_id != "0x0" else None,
            pci_address=pci_address(value("pci bus")),
            pci_id=":".join(rev) if rev else None,
            architecture=value("gfx version"),
            memory_total_bytes=integer(value("vram total memory (b)")),
            memory_used_bytes=integer(value("vram total used memory (b)")),
            memory_used_percent=number(value("gpu memory allocated (vram%)")),
            utilisation_percent=number(value("gpu use (%)")),
            temperature_c=number(value("temperature (sensor junction) (c)", "temperature (sensor edge) (c)")),
            power_w=number(value("average graphics package power (w)", "current socket graphics package power (w)")),
            power_limit_w=number(value("max graphics package power (w)")),
            partition_mode=_mode(value("memory partition"), value("compute partition")),
            numa_node=numa if numa is not None and numa >= 0 else None,  # -1: none
        )
    )


def _mode(memory: str | None, compute: str | None) -> str | None:
    return "/".join(part for part in (memory, compute) if part) or None


def _parse_amd_smi(whole: Any, source: str) -> Report:
    entries = whole.get("gpu_data") if isinstance(whole, dict) else whole
    devices = (
        [describe(entry, source) for entry in entries if isinstance(entry, dict) and "gpu" in entry]
        if isinstance(entries, list)
        else []
    )
    drivers = {d.driver_version for d in devices if d.driver_version}
    return Report(
        source=source,
        vendor=Vendor.AMD,
        devices=unique(devices),
        driver_version=drivers.pop() if len(drivers) == 1 else None,
    )


def _at(entry: Any, *path: str) -> str | None:
    for key in path:
        entry = entry.get(key) if isinstance(entry, dict) else None
    if isinstance(entry, dict) and "value" in entry:
        unit = jsontext.text_of(entry.get("unit")) or ""
        entry = f"{jsontext.text_of(entry['value']) or ''} {unit}".strip()
    return known(jsontext.text_of(entry))


def describe(entry: dict[str, Any], source: str) -> Accelerator:
    """One GPU of amd-smi's tree, whether it came as JSON or as indented text."""
    device_id = _at(entry, "asic", "device_id")
    total = mib(_at(entry, "vram", "size") or _at(entry, "mem_usage", "total_vram"))
    used = mib(_at(entry, "mem_usage", "used_vram"))
    free = mib(_at(entry, "mem_usage", "free_vram"))
    partition = entry.get("partition")
    mode = _mode(
        _at(partition, "memory_partition"),
        _at(partition, "accelerator_partition", "type") or _at(partition, "compute_partition"),
    )
    return checked_memory(
        Accelerator.of(
            source,
            vendor=Vendor.AMD,
            index=integer(jsontext.text_of(entry.get("gpu"))),
            name=_at(entry, "asic", "market_name") or _at(entry, "board", "product_name"),
            uuid=_at(entry, "uuid"),
            pci_address=pci_address(_at(entry, "bus", "bdf") or _at(entry, "bdf")),
            pci_id=f"1002:{int(device_id, 16):04x}" if device_id and _HEX.match(device_id) else None,
            architecture=_at(entry, "asic", "target_graphics_version"),
            compute_units=integer(_at(entry, "asic", "num_compute_units")),
            driver_version=_at(entry, "driver", "version"),
            memory_total_bytes=total,
            memory_used_bytes=used,
            memory_free_bytes=free,
            utilisation_percent=number(_at(entry, "usage", "gfx_activity")),
            temperature_c=number(_at(entry, "temperature", "hotspot") or _at(entry, "temperature", "edge")),
            power_w=number(_at(entry, "power", "socket_power")),
            ecc_uncorrected=integer(_at(entry, "ecc", "total_uncorrectable_count")),
            pcie_width=integer(_at(entry, "pcie", "width")),
            pcie_width_max=integer(_at(entry, "bus", "max_pcie_width")),
            power_limit_w=number(_at(entry, "limit", "max_power") or _at(entry, "limit", "power_limit")),
            partition_mode=mode,
            numa_node=integer(_at(entry, "numa", "node")),
        )
    )
