"""`nvidia-smi --query-gpu=... --format=csv[,noheader][,nounits]` and tools that copied it (ixsmi, ppu-smi, brsmi)."""

from __future__ import annotations

import csv
import re

from hwdetect.accelerator import Accelerator, DeviceProcess, State, Vendor
from hwdetect.machine import Note, Severity
from hwdetect.report import Report, checked_memory, unique
from hwdetect.text import integer, known, mib, number, pci_address

_COLUMNS = re.compile(r"--query-(?:gpu|ppu)=([\w.,]+)")
_PROCESSES = re.compile(r"--query-(?:compute|accounted)-apps=([\w.,]+)")
_PROCESSES_HEADING = re.compile(r"^(?:[a-z_]+, )*pid(?:,|\s*$)")
_UUID = re.compile(r"(?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)  # a cut one is none
_BROKEN = ("unknown error", "gpu is lost", "err!", "gpu requires reset")
_UNIT = re.compile(r"\s*\[([^\]]*)\]\s*$")

# What is asked for when the machine is asked: enough for every fact that this form can give
QUERY = (
    "index,name,uuid,pci.bus_id,driver_version,memory.total,memory.reserved,memory.used,memory.free,utilization.gpu,"
    "temperature.gpu,power.draw,power.limit,compute_cap,ecc.mode.current,ecc.errors.uncorrected.volatile.total,"
    "mig.mode.current,pcie.link.gen.current,pcie.link.gen.max,pcie.link.width.current,pcie.link.width.max"
)


def looks_like(text: str) -> bool:
    first = next((line for line in text.splitlines() if line.strip()), "")
    if re.search(r"(?:^|, )pid(?:,|$)", first):
        return True
    named = "," in first and any(name in first for name in ("memory.total", "driver_version", "pci.bus_id"))
    return named or bool(re.match(r"^\d{1,4}, [^,]+(?:, [^,]*)+$", first))


def columns_asked(command: str) -> list[str]:
    """The column names of a command line; [] if it names none."""
    found = _COLUMNS.search(command)
    return [name for name in found.group(1).split(",") if name] if found else []


def parse(text: str, source: str, vendor: Vendor = Vendor.NVIDIA) -> Report:
    """Rows by the heading; without one by the command's own column list; without both only index and name are read."""
    lines = [line for line in text.splitlines() if "," in line]
    try:
        rows = [[cell.strip() for cell in row] for row in csv.reader(lines, skipinitialspace=True) if row]
    except csv.Error:
        rows = [[cell.strip() for cell in line.split(",")] for line in lines]
    columns = columns_asked(source)
    if _PROCESSES.search(source) or any(_PROCESSES_HEADING.match(line) for line in lines):
        return _processes(rows, source, vendor)
    notes: tuple[Note, ...] = ()
    heading = next((row for row in rows if _is_heading(row)), None)
    rows = [row for row in rows if not _is_heading(row)]
    if heading is not None:
        columns = [_UNIT.sub("", cell) for cell in heading]
    elif not columns:
        columns = ["index", "name"]
        notes = (Note(Severity.INFO, source, "neither a heading nor the column list: only index and name were read"),)
    devices = [device for n, row in enumerate(rows) if (device := _device(columns, row, n, source, vendor))]
    drivers = {device.driver_version for device in devices if device.driver_version}
    return Report(
        source=source,
        vendor=vendor,
        devices=unique(devices),
        notes=notes,
        driver_version=drivers.pop() if len(drivers) == 1 else None,
    )


def _processes(rows: list[list[str]], source: str, vendor: Vendor) -> Report:
    """`--query-compute-apps`: each row is a process; only its UUID or address says on which device."""
    asked = _PROCESSES.search(source)
    columns = [name for name in asked.group(1).split(",") if name] if asked else []
    found: dict[tuple[str | None, str | None], dict[int, DeviceProcess]] = {}
    for row in rows:
        if "pid" in row:
            columns = [_UNIT.sub("", cell) for cell in row]
            continue
        cells = dict(zip(columns, row, strict=False))
        pid = integer(cells.get("pid"))
        uuid = cells.get("gpu_uuid", "")
        place = (uuid if _UUID.fullmatch(uuid) else None, pci_address(cells.get("gpu_bus_id")))
        if pid is None or place == (None, None):
            continue
        name = known(cells.get("process_name") or cells.get("name"))
        size = mib(cells.get("used_gpu_memory") or cells.get("used_memory"))
        found.setdefault(place, {}).setdefault(pid, DeviceProcess(pid, name, size, True))
    devices = unique(
        Accelerator.of(source, vendor=vendor, uuid=uuid, pci_address=address, processes=tuple(by_pid.values()))
        for (uuid, address), by_pid in found.items()
    )
    note = Note(Severity.INFO, source, "a list of processes: it names only devices that one of them uses")
    return Report(source=source, vendor=vendor, devices=devices, notes=(note,), understood=True)


def _is_heading(row: list[str]) -> bool:
    return (
        sum(1 for cell in row if re.match(r"^(?:index|name|count|uuid|timestamp|bus_id|[a-z_]+\.[a-z_.]+)\b", cell))
        >= 2
    )


def _device(columns: list[str], row: list[str], position: int, source: str, vendor: Vendor) -> Accelerator | None:
    cells = dict(zip(columns, row, strict=False))

    def value(*names: str) -> str | None:
        return next((found for name in names if (found := known(cells.get(name)))), None)

    index = integer(value("index"))
    name = value("name", "product_name", "gpu_name")
    address = pci_address(value("pci.bus_id", "gpu_bus_id", "bus_id"))
    if name is None and address is None and index is None:
        return None
    if "index" in columns and index is None:
        return None  # a heading that was cut, or a message with commas
    ids = (value("pci.device_id") or "").removeprefix("0x")
    mode = value("mig.mode.current")
    ecc = value("ecc.mode.current")
    device = checked_memory(
        Accelerator.of(
            source,
            vendor=vendor,
            index=index if index is not None else position,
            name=name,
            uuid=value("uuid", "gpu_uuid"),
            pci_address=address,
            pci_id=f"{ids[4:]}:{ids[:4]}".lower() if re.fullmatch(r"[0-9A-Fa-f]{4}10[Dd][Ee]", ids) else None,
            driver_version=value("driver_version"),
            compute_capability=value("compute_cap"),
            memory_total_bytes=mib(value("memory.total")),
            memory_used_bytes=mib(value("memory.used")),
            memory_free_bytes=mib(value("memory.free")),
            memory_reserved_bytes=mib(value("memory.reserved")),
            utilisation_percent=number(value("utilization.gpu", "utilization.aip", "utilization.ppu")),
            temperature_c=number(value("temperature.gpu", "temperature.aip", "temperature.ppu")),
            power_w=number(value("power.draw", "power.draw.instant", "power.draw.average")),
            power_limit_w=number(value("power.limit", "enforced.power.limit")),
            ecc_enabled={"Enabled": True, "Disabled": False}.get(ecc or ""),
            ecc_uncorrected=integer(value("ecc.errors.uncorrected.volatile.total")),
            partition_mode={"Enabled": "MIG", "Disabled": "none"}.get(mode or ""),
            pcie_generation=integer(value("pcie.link.gen.current")),
            pcie_generation_max=integer(value("pcie.link.gen.max")),
            pcie_width=integer(value("pcie.link.width.current")),
            pcie_width_max=integer(value("pcie.link.width.max")),
        )
    )
    return marked_broken(device, source, cells.get("memory.total"), cells.get("memory.used"))


def marked_broken(device: Accelerator, source: str, *sizes: str | None) -> Accelerator:
    """The device as unusable if one of its memory's sizes is an error's text."""
    broken = next((size for size in sizes if size and size.strip().strip("[]").lower() in _BROKEN), None)
    if broken is None:
        return device
    state = State.LOST if "lost" in broken.lower() else State.UNHEALTHY
    fix = "look for Xid errors: sudo dmesg | grep -i xid; then reset it or reboot"
    return device.with_facts(source, state=state, reason=f"its memory reads as {broken}", fix=fix)
