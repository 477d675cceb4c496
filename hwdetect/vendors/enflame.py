"""Enflame: efsmi's table, `efsmi -q` blocks and the columns of `efsmi --dmon`."""

from __future__ import annotations

import re

from hwdetect.accelerator import Accelerator, State, Vendor
from hwdetect.report import Report, checked_memory, unique
from hwdetect.text import integer, known, mib, number, pci_address
from hwdetect.vendors.box import Row, celsius, rows, title_value

# The name stands alone in older versions and after the maker's from 1.6 on
_FIRST = re.compile(r"^\s*(\d{1,4})\s+(?:Enflame\s+)?([A-Za-z]\S*)\s*$")
_DRAW = re.compile(r"(\d+(?:\.\d+)?)W\s+/?\s*(\d+(?:\.\d+)?)W")
_HEAT = re.compile(r"^\s*(\d{1,3})(?:\s*C|\u2103)?\s")


def looks_like(text: str) -> bool:
    return "Enflame System Management" in text or "EFSMI" in text or "DEV ID" in text


def parse(text: str, source: str) -> Report:
    if re.search(r"^DEV ID \d", text, re.MULTILINE):
        return _parse_blocks(text, source)
    if re.search(r"^\*Dev\b", text, re.MULTILINE):
        return _parse_columns(text, source)
    driver = title_value(text, "Driver Ver")
    devices = unique(_row(row, source) for row in rows(text, _starts))
    return Report(
        source=source,
        vendor=Vendor.ENFLAME,
        devices=tuple(d.with_facts(source, driver_version=driver) for d in devices),
        driver_version=driver,
    )


def _starts(cells: list[str]) -> tuple[int, str] | None:
    found = _FIRST.match(cells[0]) if len(cells) >= 3 else None
    return (int(found.group(1)), found.group(2)) if found and pci_address(_bus(cells[2])) else None


def _bus(cell: str) -> str:
    """The bus id without its odd two-digit domain: `00:01:00.0` is domain 0, bus 1."""
    found = re.search(r"\b([0-9a-fA-F]{2}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2}\.\d)", cell)
    return f"00{found.group(1)}:{found.group(2)}:{found.group(3)}" if found else cell


def _row(row: Row, source: str) -> Accelerator:
    power, heat = _DRAW.search(row.cell(1, 0)), _HEAT.match(f"{row.cell(1, 0)} ")
    total = mib(row.cell(1, 1).split()[0]) if row.cell(1, 1) else None
    share = number(row.cell(1, 2).split("%")[0]) if "%" in row.cell(1, 2) else None
    ecc = row.cell(0, 2).split()[-1] if row.cell(0, 2) else ""
    return Accelerator.of(
        source,
        vendor=Vendor.ENFLAME,
        index=row.index,
        name=f"Enflame {row.title}",
        pci_address=pci_address(_bus(row.cell(0, 2))),
        memory_total_bytes=total,
        temperature_c=celsius(row.cell(1, 0)) if heat is None else float(heat.group(1)),
        power_w=float(power.group(1)) if power else None,
        power_limit_w=float(power.group(2)) if power else None,
        utilisation_percent=share,
        ecc_enabled={"Enable": True, "Disable": False}.get(ecc),
    )


def _parse_columns(text: str, source: str) -> Report:
    """The first heading line names the columns and the second their units."""
    heading: list[str] = []
    units: list[str] = []
    devices: list[Accelerator] = []
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["*Dev"]:
            heading = words
        elif words[:1] == ["*Idx"]:
            units = words
        elif heading and len(words) >= 2 and words[0].isascii() and words[0].isdigit() and len(words[0]) < 5:
            row = dict(zip(heading, words, strict=False))
            unit = dict(zip(heading, units, strict=False)).get("Mem", "MiB")
            total = mib(f"{row.get('Mem', '')}{unit}") if re.fullmatch(r"[KMGT]iB", unit) else None
            share = number(row.get("MUsed"))
            valid = total is not None and share is not None and 0 <= share <= 100
            devices.append(
                Accelerator.of(
                    source,
                    vendor=Vendor.ENFLAME,
                    index=int(words[0]),
                    memory_total_bytes=total,
                    memory_used_percent=share,
                    memory_used_bytes=int(total * share / 100) if valid and total and share is not None else None,
                    utilisation_percent=number(row.get("DUsed")),
                    temperature_c=number(row.get("DTemp")),
                    power_w=number(row.get("Pwr")),
                )
            )
    return Report(source=source, vendor=Vendor.ENFLAME, devices=unique(devices))


def _parse_blocks(text: str, source: str) -> Report:
    blocks: dict[int, dict[tuple[str, str], str]] = {}
    current: dict[tuple[str, str], str] | None = None
    section = ""
    for line in text.splitlines():
        opened = re.match(r"^DEV ID (\d{1,4})\b", line)
        if opened:
            current = blocks.setdefault(int(opened.group(1)), {})
            section = ""
            continue
        key, colon, value = line.partition(":")
        if current is None or not key.strip():
            continue
        if not colon:
            section = key.strip()
        else:
            current.setdefault((section, key.strip()), value.strip())
    devices = unique(_block(index, values, source) for index, values in blocks.items() if values)
    drivers = {d.driver_version for d in devices if d.driver_version}
    return Report(
        source=source,
        vendor=Vendor.ENFLAME,
        devices=devices,
        driver_version=drivers.pop() if len(drivers) == 1 else None,
    )


def _block(index: int, values: dict[tuple[str, str], str], source: str) -> Accelerator:
    def value(*names: str) -> str | None:
        return next((v for name in names for (_, key), v in values.items() if key == name and known(v)), None)

    def within(section: str, name: str) -> str | None:
        return known(values.get((section, name)))

    vendor_id, device_id = value("Vendor ID"), value("Device ID")
    parts = [within("PCIe Info", name) for name in ("Domain", "Bus", "Dev", "Func")]
    address = f"{parts[0]}:{parts[1]}:{parts[2]}.{parts[3]}" if all(parts) else None
    name = value("Dev Name")
    health = value("Health")
    ecc = within("ECC Mode", "Current") or value("Mem Ecc") or ""
    device = Accelerator.of(
        source,
        vendor=Vendor.ENFLAME,
        index=index,
        name=f"Enflame {name}" if name else None,
        uuid=value("Dev UUID"),
        pci_address=pci_address(address),
        pci_id=f"{vendor_id}:{device_id}".lower() if vendor_id and device_id else None,
        driver_version=within("Driver Info", "Ver"),
        memory_total_bytes=mib(value("Total Size", "Mem Size")),
        memory_used_bytes=mib(value("Used Size", "Mem Usage")),
        memory_free_bytes=mib(value("Free Size")),
        memory_reserved_bytes=mib(value("Reserved Size")),
        utilisation_percent=number(value("GCU Usage")),
        temperature_c=number(value("GCU Temp")),
        power_w=number(value("Cur Power")),
        power_limit_w=number(value("Power Capa")),
        ecc_enabled={"enable": True, "disable": False}.get(ecc.lower()),
        ecc_uncorrected=integer(within("RMA Info", "Total DBE")),
        health=health,
        pcie_generation=integer((value("Cur Link Speed") or "").removeprefix("Gen")),
        pcie_generation_max=integer((value("Max Link Speed") or "").removeprefix("Gen")),
        pcie_width=integer((value("Cur Link Width") or "").upper().removeprefix("X")),
        pcie_width_max=integer((value("Max Link Width") or "").upper().removeprefix("X")),
    )
    if health and health.lower() in ("false", "bad", "abnormal"):
        device = device.with_facts(
            source, state=State.UNHEALTHY, reason=f"efsmi says Health: {health}", fix="sudo dmesg | grep -i enflame"
        )
    return checked_memory(device)
