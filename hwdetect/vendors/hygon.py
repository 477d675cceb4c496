"""Hygon DCU: the concise table of hy-smi and of DTK's rocm-smi, their JSON, and a container's virtual DCU."""

from __future__ import annotations

import re

from hwdetect import jsontext
from hwdetect.accelerator import Accelerator, Vendor
from hwdetect.report import Report, checked_memory, unique
from hwdetect.text import integer, key_values, known, number, pci_address
from hwdetect.vendors.box import celsius, percent

_CARD = re.compile(r"^card(\d{1,4})$")


def looks_like(text: str) -> bool:
    dcu_table = re.search(r"^\s*DCU\s+Temp", text, re.MULTILINE) is not None
    if re.search(r'"card\d+"', text):
        return bool(re.search(r'"(?:HCU|DCU) |hygon|haiguang', text, re.IGNORECASE))
    return dcu_table or "Actual Device" in text or "hy-smi" in text or ("HCU" in text and "VRAM%" in text)


def parse(text: str, source: str) -> Report:
    if "Actual Device" in text:
        return _parse_virtual(text, source)
    if re.search(r'"card\d+"', text):
        return _parse_json(text, source)
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
    devices: list[Accelerator] = []
    for name, card in cards.items():
        found = _CARD.match(str(name))
        if not found or not isinstance(card, dict):
            continue
        lowered = {str(key).strip().lower(): jsontext.text_of(value) for key, value in card.items()}
        total = number(lowered.get("available memory size (mib)") or lowered.get("vram total memory (mib)"))
        used = number(lowered.get("hcu memory use (mib)") or lowered.get("vram total used memory (mib)"))
        devices.append(
            checked_memory(
                Accelerator.of(
                    source,
                    vendor=Vendor.HYGON,
                    index=int(found.group(1)),
                    name=known(lowered.get("card series")) or known(lowered.get("card model")),
                    uuid=known(lowered.get("unique id")),
                    # The value may carry a serial number after the address
                    pci_address=pci_address(lowered.get("pci bus")),
                    memory_total_bytes=int(total * 1024 * 1024)
                    if total
                    else integer(lowered.get("vram total memory (b)")),
                    memory_used_bytes=int(used * 1024 * 1024)
                    if used is not None
                    else integer(lowered.get("vram total used memory (b)")),
                    utilisation_percent=number(lowered.get("dcu use (%)") or lowered.get("hcu use (%)")),
                    temperature_c=number(lowered.get("temperature (sensor edge) (c)")),
                )
            )
        )
    return Report(source=source, vendor=Vendor.HYGON, devices=unique(devices))
