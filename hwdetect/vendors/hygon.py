"""Hygon DCU: the concise table of hy-smi and of DTK's rocm-smi, their JSON, and a container's virtual DCU."""

from __future__ import annotations

import re

from hwdetect import jsontext
from hwdetect.accelerator import Accelerator, Vendor
from hwdetect.report import Report, checked_memory, unique
from hwdetect.text import MIB, integer, key_values, known, number, pci_address
from hwdetect.vendors.box import celsius, percent

_LISTED = re.compile(r"^(?:HCU|DCU)\[(\d{1,4})\]\s*:\s*(.+?)\s*:\s*(.*?)\s*$", re.MULTILINE)
_CARD = re.compile(r"^card(\d{1,4})$")


def looks_like(text: str) -> bool:
    dcu_table = re.search(r"^\s*DCU\s+Temp", text, re.MULTILINE) is not None
    if re.search(r'"card\d+"', text):
        return bool(re.search(r'"(?:HCU|DCU) |hygon|haiguang', text, re.IGNORECASE))
    return (
        dcu_table
        or _LISTED.search(text) is not None
        or "Actual Device" in text
        or "hy-smi" in text
        or ("HCU" in text and "VRAM%" in text)
    )


def parse(text: str, source: str) -> Report:
    if "Actual Device" in text:
        return _parse_virtual(text, source)
    if re.search(r'"card\d+"', text):
        return _parse_json(text, source)
    if _LISTED.search(text):
        return _parse_listed(text, source)
    heading: list[str] = []
    devices: list[Accelerator] = []
    for line in text.splitlines():
        words = line.split()
        if words[:1] in (["DCU"], ["HCU"]) and "VRAM%" in words:
            heading = words
        elif heading and len(words) >= 4 and words[0].isascii() and words[0].isdigit() and len(words[0]) < 5:
            devices.append(_row(dict(zip(heading, words, strict=False)), int(words[0]), source))
    return Report(source=source, vendor=Vendor.HYGON, devices=unique(devices))


def _row(row: dict[str, str], index: int, source: str) -> Accelerator:
    mode = row.get("Mode")
    return Accelerator.of(
        source,
        vendor=Vendor.HYGON,
        index=index,
        temperature_c=celsius(row.get("Temp", "")),
        power_w=number(row.get("AvgPwr")),
        power_limit_w=number(row.get("PwrCap")),
        memory_used_percent=percent(row.get("VRAM%", "")),
        utilisation_percent=percent(row.get("DCU%", row.get("HCU%", ""))),
        health=mode,
    )


def _parse_virtual(text: str, source: str) -> Report:
    devices: list[Accelerator] = []
    index: int | None = None
    values: dict[str, str] = {}

    def finish() -> None:
        if index is not None and values:
            size = re.match(r"(\d{1,18})", values.get("Global memory", ""))
            devices.append(
                Accelerator.of(
                    source,
                    vendor=Vendor.HYGON,
                    index=index,
                    virtual=True,
                    physical_id=integer(values.get("Actual Device")),
                    compute_units=integer(values.get("Compute units")),
                    memory_total_bytes=int(size.group(1)) if size else None,
                )
            )

    for _, key, value in key_values(text.splitlines()):
        opened = re.fullmatch(r"Device (\d{1,4})", key)
        if opened:
            finish()
            index, values = int(opened.group(1)), {}
        else:
            values.setdefault(key, value)
    finish()
    return Report(source=source, vendor=Vendor.HYGON, devices=unique(devices))


def _parse_json(text: str, source: str) -> Report:
    whole = jsontext.load(text)
    cards = whole if isinstance(whole, dict) else jsontext.members(text)
    devices = [
        _described(
            int(found.group(1)), {str(key): jsontext.text_of(value) or "" for key, value in card.items()}, source
        )
        for name, card in cards.items()
        if (found := _CARD.match(str(name))) and isinstance(card, dict)
    ]
    return Report(source=source, vendor=Vendor.HYGON, devices=unique(devices))


def _parse_listed(text: str, source: str) -> Report:
    """`HCU[0] : key: value` lines."""
    values: dict[int, dict[str, str]] = {}
    for found in _LISTED.finditer(text):
        values.setdefault(int(found.group(1)), {}).setdefault(found.group(2), found.group(3))
    devices = [_described(index, row, source) for index, row in values.items()]
    return Report(source=source, vendor=Vendor.HYGON, devices=unique(devices))


def _described(index: int, values: dict[str, str], source: str) -> Accelerator:
    lowered = {key.strip().lower(): value for key, value in values.items()}

    def size(*names: str) -> int | None:
        """Bytes of the first of these keys, which end in their unit."""
        for name in names:
            for unit, scale in ((" (mib)", MIB), (" (b)", 1)):
                count = number(lowered.get(name + unit))
                if count is not None and count >= 0:
                    return int(count * scale)
        return None

    return checked_memory(
        Accelerator.of(
            source,
            vendor=Vendor.HYGON,
            index=index,
            name=known(lowered.get("card series")) or known(lowered.get("card model")),
            uuid=known(lowered.get("unique id")),
            # The value may carry a serial number after the address
            pci_address=pci_address(lowered.get("pci bus")),
            memory_total_bytes=size("available memory size", "vram total memory"),
            memory_used_bytes=size("hcu memory use", "dcu memory use", "vram total used memory"),
            utilisation_percent=number(lowered.get("dcu use (%)") or lowered.get("hcu use (%)")),
            temperature_c=number(lowered.get("temperature (sensor edge) (c)")),
        )
    )
