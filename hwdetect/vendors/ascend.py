"""Huawei Ascend: `npu-smi info` in its widths, `info -l`, `-m`, `-t usages|memory|topo`, and its DCMI errors."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hwdetect.accelerator import Accelerator, DeviceProcess, State, Vendor
from hwdetect.machine import Note, Severity
from hwdetect.report import Problem, Report, checked_memory, unique
from hwdetect.text import MIB, integer, key_values, known, number, pci_address
from hwdetect.vendors import matrix
from hwdetect.vendors.box import cells_of, title_value

_FIRST = re.compile(r"^\s*(\d{1,6})\s+(\S.*?)\s*$")
_SECOND = re.compile(r"^\s*(\d{1,3})(?:\s+(\S+))?\s*$")
_PAIRS = re.compile(r"(\d+(?:\.\d+)?|NA|N/A|-)\s*/\s*(\d+(?:\.\d+)?|NA|N/A|-)")
_DCMI = re.compile(r"dcmi\w* .*?(?:ret(?:urn)?(?: code)? is|ret=|error code:?)\s*(-?\d{3,6})", re.IGNORECASE)
_VIRTUAL_FROM = 32768  # ids from here on are those of interposed slices, no board has them
_BLAME = "see the messages: sudo dmesg | grep -i davinci; then: npu-smi info -t health"

_ERRORS = {
    -8005: (
        State.NO_PERMISSION,
        "DCMI -8005: no permission, or the device is held by another container",
        "start the container with --device /dev/davinciN and the manager nodes, and see that no other one holds it",
    ),
    -8020: (
        State.NOT_EXPOSED,
        "DCMI -8020: the device does not exist here",
        "give the container /dev/davinciN, /dev/davinci_manager, /dev/devmm_svm and /dev/hisi_hdc",
    ),
}


def looks_like(text: str) -> bool:
    marks = ("npu-smi ", "dcmi", "NPU ID", "Aicore Usage", "HBM Capacity", "DrvMng")
    return any(mark in text for mark in marks) or bool(re.search(r"^\s*NPU0\b", text, re.MULTILINE))


def parse(text: str, source: str) -> Report:
    if "+---" in text or "+===" in text or re.search(r"^\s*\|", text, re.MULTILINE):
        return _parse_table(text, source)
    if re.search(r"^\s*NPU0\s+(?:NPU1|X\b|CPU)", text, re.MULTILINE) or "HCCS" in text:
        return _parse_topology(text, source)
    if re.search(r"^\s*NPU ID\s+(?:Slot ID\s+)?Chip ID", text, re.MULTILINE):
        return _parse_mapping(text, source)
    if "Usage Rate(%)" in text or "Capacity(MB)" in text or "Real-time Power(W)" in text:
        return _parse_usages(text, source)
    if re.search(r"^\s*NPU ID\s*:", text, re.MULTILINE) or "Total Count" in text:
        return _parse_list(text, source)
    problems = _problems(text)
    if problems:
        return Report(source=source, vendor=Vendor.ASCEND, problems=problems)
    return _parse_usages(text, source)


def _problems(text: str) -> tuple[Problem, ...]:
    found = _DCMI.search(text)
    if not found:
        return ()
    code = int(found.group(1))
    state, reason, fix = _ERRORS.get(
        code, (State.UNKNOWN, f"DCMI error {code}", "check the driver: npu-smi info; look into /var/log/npu")
    )
    return (Problem(state, reason, fix),)


@dataclass
class _Card:
    npu: int
    name: str
    health: str
    readings: str


def _parse_table(text: str, source: str) -> Report:
    driver = title_value(text, "Version")
    has_hbm = "HBM-Usage" in text
    second_is_physical = bool(re.search(r"Phy-?\s?ID", text))
    devices: list[Accelerator] = []
    processes: dict[tuple[int, int], list[DeviceProcess]] = {}
    said_processes = "Process id" in text or "No running processes" in text
    card: _Card | None = None
    section = "devices"
    for where, cells in cells_of(text):
        if cells is None:
            continue
        opening = cells[0].strip()
        if opening.startswith("NPU") and len(cells) > 1:
            section = "processes" if "Process" in "".join(cells[1:]) else "devices"
            card = None
            continue
        if where == "processes" or section == "processes":
            _add_process(processes, cells)
            continue
        first, second = _FIRST.match(cells[0]), _SECOND.match(cells[0])
        is_detail = second and len(cells) >= 3 and "/" in cells[2] and card is not None
        if is_detail and second and card is not None and _looks_like_bus(cells[1]):
            devices.append(_device(card, second, cells, has_hbm, second_is_physical, source))
            card = None
        elif first and len(cells) >= 3 and re.search(r"[A-Za-z]", cells[1]) and not _looks_like_bus(cells[1]):
            card = _Card(int(first.group(1)), first.group(2), cells[1].strip(), cells[2])
    by_chip = unique(devices)
    if said_processes:
        by_chip = tuple(
            d.with_facts(source, processes=tuple(processes.get((d.card or 0, d.chip or 0), ()))) for d in by_chip
        )
    finished = tuple(
        checked_memory(
            device.with_facts(source, index=n if device.index is None else device.index, driver_version=driver)
        )
        for n, device in enumerate(by_chip)
    )
    return Report(
        source=source, vendor=Vendor.ASCEND, devices=finished, problems=_problems(text), driver_version=driver
    )


def _looks_like_bus(cell: str) -> bool:
    return bool(re.match(r"^\s*(?:[0-9A-Fa-fx]{4,8}:[0-9A-Fa-fx]{2}:[0-9A-Fa-fx]{2}\.\d|NA|-)\s*$", cell))


def _device(
    card: _Card, second: re.Match[str], cells: list[str], has_hbm: bool, second_is_physical: bool, source: str
) -> Accelerator:
    pairs = _PAIRS.findall(cells[2])
    # The column of HBM comes last; without it the same place is DDR that the chip computes from
    used, total = (number(part) for part in pairs[-1]) if pairs and (not has_hbm or len(pairs) > 1) else (None, None)
    power, temperature = _power_and_temperature(card.readings)
    usage = re.match(r"\s*(\d+(?:\.\d+)?)\s", cells[2])
    extra = second.group(2)
    second_id = integer(extra) if extra else None
    healthy = card.health.upper() == "OK"
    device = Accelerator.of(
        source,
        vendor=Vendor.ASCEND,
        name=_product(card.name),
        card=card.npu,
        chip=int(second.group(1)),
        index=second_id if not second_is_physical else None,
        physical_id=second_id if second_is_physical else None,
        virtual=True if card.npu >= _VIRTUAL_FROM else None,
        pci_address=pci_address(cells[1]),
        health=card.health,
        memory_total_bytes=int(total * MIB) if total else None,
        memory_used_bytes=int(used * MIB) if used is not None else None,
        power_w=power,
        temperature_c=temperature,
        utilisation_percent=float(usage.group(1)) if usage else None,
    )
    if not healthy:
        reason = f"npu-smi calls its health {card.health}"
        device = device.with_facts(source, state=State.UNHEALTHY, reason=reason, fix=_BLAME)
    return device


def _product(name: str) -> str:
    return name if name.lower().startswith("ascend") else f"Ascend {name}"


def _power_and_temperature(readings: str) -> tuple[float | None, float | None]:
    words = readings.split()
    return (number(words[0]) if words else None, number(words[1]) if len(words) > 1 else None)


def _add_process(found: dict[tuple[int, int], list[DeviceProcess]], cells: list[str]) -> None:
    where = re.match(r"^\s*(\d{1,6})\s+(\d{1,3})\s*$", cells[0])
    pid = integer(cells[1]) if len(cells) > 1 else None
    if where and pid is not None:
        size = number(cells[3]) if len(cells) > 3 else None
        process = DeviceProcess(
            pid, known(cells[2]) if len(cells) > 2 else None, int(size * MIB) if size is not None else None, True
        )
        listed = found.setdefault((int(where.group(1)), int(where.group(2))), [])
        if all(other.pid != pid for other in listed):
            listed.append(process)


def _parse_topology(text: str, source: str) -> Report:
    found = matrix.parse(text)
    devices = [
        Accelerator.of(
            source,
            vendor=Vendor.ASCEND,
            index=row,
            links=found.links(row),
            cpu_affinity=found.cpus.get(row),
        )
        for row in found.devices
    ]
    return Report(source=source, vendor=Vendor.ASCEND, devices=tuple(devices))


def _parse_mapping(text: str, source: str) -> Report:
    """`info -m`: rows of the management controller, whose logic id is a word, are no NPUs."""
    heading: list[str] = []
    devices: list[Accelerator] = []
    notes: tuple[Note, ...] = ()
    for line in text.splitlines():
        columns = re.split(r"\s{2,}", line.strip())
        if "NPU ID" in line and "Chip ID" in line:
            heading = columns
            if "Slot ID" in columns:
                notes = (Note(Severity.INFO, source, "this npu-smi numbers chips by slot: its sub-queries take no -c"),)
            continue
        row = dict(zip(heading, columns, strict=False))
        npu, chip = integer(row.get("NPU ID")), integer(row.get("Chip ID"))
        number_name = next((name for name in ("Chip Logic ID", "Chip Phy-ID", "Chip Phy ID") if name in row), None)
        logic = integer(row.get(number_name)) if number_name else None
        name = known(row.get("Chip Name"))
        if npu is None or chip is None or logic is None or not name or name.lower() == "mcu":
            continue
        devices.append(
            Accelerator.of(
                source,
                vendor=Vendor.ASCEND,
                index=logic,
                name=_product(name),
                card=npu,
                chip=chip,
                physical_id=logic if number_name != "Chip Logic ID" else None,
            )
        )
    return Report(source=source, vendor=Vendor.ASCEND, devices=unique(devices), notes=notes)


def _parse_list(text: str, source: str) -> Report:
    total: int | None = None
    devices: list[Accelerator] = []
    npu: int | None = None
    address: str | None = None
    driver: str | None = None
    pci_id: str | None = None
    for _, key, value in key_values(text.splitlines()):
        if key == "Total Count":
            total = integer(value)
        elif key == "NPU ID":
            npu = integer(value)
        elif key == "PCIe Bus Info":
            address = pci_address(value)
        elif key == "Software Version":
            driver = known(value)
        elif key == "PCI Device ID":
            found = re.fullmatch(r"0x([0-9A-Fa-f]{4})", value)
            pci_id = f"19e5:{found.group(1).lower()}" if found else None
        elif key == "Chip Count" and npu is not None:
            for chip in range(min(integer(value) or 0, 16)):
                # A board's address is that of its first chip
                devices.append(
                    Accelerator.of(
                        source,
                        vendor=Vendor.ASCEND,
                        card=npu,
                        chip=chip,
                        pci_address=address if chip == 0 else None,
                        pci_id=pci_id,
                        driver_version=driver,
                    )
                )
            npu = address = driver = pci_id = None
    listed = unique(devices)
    numbered = tuple(d.with_facts(source, index=n) for n, d in enumerate(listed))
    drivers = {d.driver_version for d in numbered if d.driver_version}
    return Report(
        source=source,
        vendor=Vendor.ASCEND,
        devices=numbered,
        driver_version=drivers.pop() if len(drivers) == 1 else None,
        expected_devices=total,
    )


def _parse_usages(text: str, source: str) -> Report:
    """`info -t usages|memory|common -i N`: `Key(unit) : value` lines of each chip, its `Chip ID` being the last."""
    npu: int | None = None
    # `-t common` begins a chip with its id, the others end it so
    leads = bool(re.search(r"^\s*Chip ID\s*:.*\n\s*\S[^\n]*Rate\(%\)", text, re.MULTILINE))
    blocks: list[dict[str, str]] = [{}]
    for _, key, value in key_values(text.splitlines()):
        if key == "NPU ID":
            npu = integer(value) if npu is None else npu
            continue
        if key == "Chip ID" and leads:
            blocks.append({})
        blocks[-1].setdefault(key, value)
        if key == "Chip ID" and not leads:
            blocks.append({})
    chips: dict[int, dict[str, str]] = {}
    for block in blocks:
        chip = integer(block.get("Chip ID"))
        if chip is not None:
            chips.setdefault(chip, block)
    devices = [
        device for block in list(chips.values()) or blocks[:1] if (device := _usages(block, npu, source)) is not None
    ]
    return Report(source=source, vendor=Vendor.ASCEND, devices=unique(devices))


def _usages(values: dict[str, str], npu: int | None, source: str) -> Accelerator | None:
    def size(*names: str) -> int | None:
        found = next((count for name in names if (count := number(values.get(name)))), None)
        return int(found * MIB) if found and found > 0 else None

    total = size("HBM Capacity(MB)", "DDR Capacity(MB)", "Memory Capacity(MB)")
    kind = "HBM" if size("HBM Capacity(MB)") else "DDR" if size("DDR Capacity(MB)") else "Memory"
    if total is None and "HBM Usage Rate(%)" in values:
        kind = "HBM"  # `-t common` has rates alone; chips with HBM compute from it
    share = number(values.get(f"{kind} Usage Rate(%)"))
    power, heat = number(values.get("NPU Real-time Power(W)")), number(values.get("Temperature(C)"))
    if total is None and share is None and power is None and heat is None:
        return None
    known_share = total is not None and share is not None and 0 <= share <= 100
    chip = integer(values.get("Chip ID"))
    return Accelerator.of(
        source,
        vendor=Vendor.ASCEND,
        card=npu,
        chip=chip,
        memory_total_bytes=total,
        memory_used_percent=share,
        memory_used_bytes=int(total * share / 100) if known_share and total and share is not None else None,
        power_w=power,
        temperature_c=heat,
        compute_units=integer(values.get("Aicore Count")),
        utilisation_percent=number(values.get("Aicore Usage Rate(%)") or values.get("AICore Usage Rate(%)")),
    )
