"""Tools whose table copies nvidia-smi's: ixsmi, hl-smi, Kunlunxin's xpu-smi, Intel's xpu-smi 2.x, cnmon, mx-smi."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hwdetect.accelerator import Accelerator, DeviceProcess, State, Vendor
from hwdetect.report import Report, checked_memory, unique
from hwdetect.text import integer, known, mib, pci_address
from hwdetect.vendors.box import Row, cells_of, celsius, percent, rows, title_value, watts

_NAMED = re.compile(r"^\s*(\d{1,4})\s+(.+?)(?:\s+(On|Off|N/A|Enabled|Disabled))?\s*$")
_NUMBERED = re.compile(r"^\s*(\d{1,4})(?:\s+(?:On|Off|N/A))?\s*$")
_ALONE = re.compile(r"(?<![\w./])(\d+(?:\.\d+)?)\s?W\b(?:\s*/\s*NA?\b)?")
_CNMON = re.compile(r"^\s*(\d{1,4})\s+(\S+)\s+(\S.*?)\s+(v[\d.]+|N/A)\s*$")
_PROCESS = re.compile(
    r"^\s*(\d{1,4})\s+(?:(?:N/A|/|\d{1,3})\s+){0,2}?(\d{1,10})\s+(?:([CG+]{1,3})\s+)?(\S.*?)(?:\s+(\d+)\s*([KMG]i?B)?)?\s*$"
)


@dataclass(frozen=True, slots=True)
class Dialect:
    """Where a tool puts what: cells are (line, column) of a device's row."""

    vendor: Vendor
    driver_keys: tuple[str, ...]
    runtime_keys: tuple[str, ...] = ()
    runtime_label: str = ""
    utilisation_cell: tuple[int, int] = (1, 2)
    errors_cell: tuple[int, int] | None = None
    says_health: bool = False  # in the last cell of the second line
    ecc_cell: tuple[int, int] | None = None
    needs_address: bool = True
    boards: bool = False  # a first column may number boards; devices are then numbered in the second
    cnmon: bool = False


ILUVATAR = Dialect(Vendor.ILUVATAR, ("Driver Version",), ("CUDA Version",), "CUDA API ")
GAUDI = Dialect(Vendor.GAUDI, ("Driver Version",), errors_cell=(0, 2))
KUNLUN = Dialect(Vendor.KUNLUNXIN, ("Driver Version",), ("XPU-RT Version",), "XPU-RT ", ecc_cell=(0, 2))
INTEL = Dialect(Vendor.INTEL, ("Driver",), ("Level Zero",), "Level Zero ", ecc_cell=(0, 2))
METAX = Dialect(
    Vendor.METAX,
    ("Kernel Mode Driver Version",),
    ("MACA Version",),
    "MACA ",
    utilisation_cell=(0, 3),
    says_health=True,
    boards=True,
)
CAMBRICON = Dialect(Vendor.CAMBRICON, ("Driver",), utilisation_cell=(0, 2), needs_address=False, cnmon=True)


_GAUDI = {"HL-205": "Gaudi", "HL-225": "Gaudi2", "HL-325": "Gaudi3", "HL-325L": "Gaudi3", "HL-335": "Gaudi3"}


def parse(text: str, source: str, dialect: Dialect) -> Report:
    def starts(cells: list[str]) -> tuple[int, str] | None:
        return _starts(cells, dialect)

    driver = title_value(text, *dialect.driver_keys)
    runtime = title_value(text, *dialect.runtime_keys) if dialect.runtime_keys else None
    runtime = f"{dialect.runtime_label}{runtime}" if runtime else None
    processes = _processes(text) if re.search(r"^\|\s*Process", text, re.MULTILINE) else None
    devices = [_device(row, source, dialect, processes) for row in rows(text, starts)]
    if (dialect.cnmon and driver is None) or (dialect.cnmon and not (driver or "").startswith("v")):
        drivers = {d.driver_version for d in devices if d.driver_version}
        driver = drivers.pop() if len(drivers) == 1 else None
    found = tuple(d.with_facts(source, driver_version=driver, runtime_version=runtime) for d in unique(devices))
    return Report(source=source, vendor=dialect.vendor, devices=found, driver_version=driver, runtime_version=runtime)


def _starts(cells: list[str], dialect: Dialect) -> tuple[int, str] | None:
    if len(cells) < 2:
        return None
    if dialect.cnmon:
        card = _CNMON.match(cells[0])
        return (int(card.group(1)), card.group(3)) if card else None
    found = _NAMED.match(cells[0])
    numbered = _NUMBERED.match(cells[1]) if found and dialect.boards and len(cells) == 4 else None
    if not found or not re.search(r"[A-Za-z]", found.group(2)) or "%" in found.group(2)[:4]:
        return None
    if dialect.needs_address and not any(pci_address(cell) for cell in cells[1:]):
        return None
    return int(numbered.group(1) if numbered else found.group(1)), found.group(2).strip()


def _device(row: Row, source: str, dialect: Dialect, processes: dict[int, list[DeviceProcess]] | None) -> Accelerator:
    used, total = row.memory()
    draw, limit = watts(row.cell(1, 0))
    if draw is None and (alone := _ALONE.search(row.cell(1, 0))) and "/" not in row.cell(1, 0)[: alone.start()]:
        draw = float(alone.group(1))
    errors = integer(row.cell(*dialect.errors_cell)) if dialect.errors_cell else None
    health = _health(row, dialect)
    ecc = row.cell(*dialect.ecc_cell) if dialect.ecc_cell else ""
    row_driver = re.search(r"\bv\d[\w.]*", row.cell(0, 1)) if dialect.cnmon else None
    # Columns glue the persistence word to names in some widths
    title = re.sub(r"\s+(?:On|Off|N/A)$", "", row.title)
    device = Accelerator.of(
        source,
        vendor=dialect.vendor,
        index=row.index,
        card=_board(row, dialect),
        name=product(title, dialect.vendor),
        pci_address=row.address,
        architecture=_GAUDI.get(row.title.split()[0]) if dialect.vendor is Vendor.GAUDI else None,
        driver_version=row_driver.group() if row_driver else None,
        memory_total_bytes=total,
        memory_used_bytes=used,
        temperature_c=next((heat for n in (0, 1) if (heat := celsius(row.cell(1, n))) is not None), None),
        power_w=draw,
        power_limit_w=limit,
        utilisation_percent=_utilisation(row, dialect),
        ecc_uncorrected=errors if errors is not None else integer(ecc),
        ecc_enabled=False if ecc == "Disabled" else True if ecc == "Enabled" or ecc.isdigit() else None,
        health=health,
        processes=tuple(processes.get(row.index, ())) if processes is not None else None,
    )
    if health and health.lower() not in ("available", "ok", "normal", "healthy"):
        reason = f"the tool calls its state {health}"
        device = device.with_facts(
            source, state=State.UNHEALTHY, reason=reason, fix="see the kernel log: sudo dmesg | tail -100"
        )
    return checked_memory(device)


def _health(row: Row, dialect: Dialect) -> str | None:
    """The words of the state's cell; "Not Available" is a state here, which elsewhere means that nothing is known."""
    said = row.lines[1][-1].strip() if dialect.says_health and len(row.lines) > 1 else ""
    return said if re.fullmatch(r"[A-Za-z][A-Za-z ]*", said) else None


def _board(row: Row, dialect: Dialect) -> int | None:
    """The board's number where the table has one beside the device's."""
    if not (dialect.boards and len(row.lines[0]) == 4 and _NUMBERED.match(row.lines[0][1])):
        return None
    found = _NAMED.match(row.lines[0][0])
    return int(found.group(1)) if found else None


def _utilisation(row: Row, dialect: Dialect) -> float | None:
    """The cell that the heading names; MetaX' older table has it in the first line's last one."""
    found = percent(row.cell(*dialect.utilisation_cell))
    return percent(row.lines[0][-1]) if found is None and dialect.vendor is Vendor.METAX else found


def product(name: str | None, vendor: Vendor) -> str | None:
    """The name with its maker's line where the tool leaves that out."""
    trimmed = (name or "").strip()
    bare = vendor is Vendor.KUNLUNXIN and trimmed and not trimmed.lower().startswith("kunlun")
    return f"Kunlun {trimmed}" if bare else trimmed or None


def _processes(text: str) -> dict[int, list[DeviceProcess]]:
    found: dict[int, dict[int, DeviceProcess]] = {}
    for section, cells in cells_of(text):
        row = _PROCESS.match(cells[0]) if cells and len(cells) == 1 and section == "processes" else None
        if row:
            card, pid, kind, name, size, unit = row.groups()
            used = mib(f"{size}{unit or 'MiB'}") if size else None
            process = DeviceProcess(int(pid), known(name), used, "C" in kind if kind else None)
            found.setdefault(int(card), {}).setdefault(int(pid), process)
    return {card: list(by_pid.values()) for card, by_pid in found.items()}
