"""AMD as text: rocm-smi's concise tables, its lists and `--showtopo`; amd-smi's version and partitions.

Hygon's DTK ships the same tool with DCU columns: those tables are read in hygon.py.
"""

from __future__ import annotations

import re

from hwdetect.accelerator import Accelerator, Link, Partition, State, Vendor
from hwdetect.machine import Note, Severity
from hwdetect.report import Problem, Report, checked_memory, unique
from hwdetect.text import integer, known, number, pci_address
from hwdetect.vendors import matrix
from hwdetect.vendors.box import celsius, percent

_LISTED = re.compile(r"^GPU\[(\d{1,4})\]\s*:\s*(.+?)\s*:\s*(.*?)\s*$")
# Code and card of an error line. "Unable to get ..." without a code is a thing that this card does not have
_BAD = re.compile(r"^ERROR:\s*\d+\s+GPU\[(\d{1,4})\]", re.MULTILINE)
_IDS = re.compile(r"^\s*(\d{1,4})\s+(?:(\d{1,4})\s+)?(0x[0-9a-fA-F]{4}|N/A),\s*(\d{1,7})\s+(.*)$")
# A heading such as "Temp (DieEdge)" is one column
_REMARK = re.compile(r"\([^)]*\)")
_PARTITIONED = re.compile(r"(NPS\d|N/A),\s*([A-Z]PX|N/A),\s*(\d{1,3}|N/A)")

_Row = tuple[int, str, str, str, str]  # index, device id, GUID, partition number, the line


def looks_like(text: str) -> bool:
    marks = (
        "ROCm System Management Interface",
        "ROCm SMI Log",
        "AMDSMI Tool",
        "CURRENT_PARTITION",
        "rocm-smi",
        "amd-smi",
    )
    return any(mark in text for mark in marks) or bool(re.search(r"^GPU\[\d+\]\s*:", text, re.MULTILINE))


def parse(text: str, source: str) -> Report:
    if "AMDSMI Tool" in text:
        return _parse_version(text, source)
    if "CURRENT_PARTITION" in text or "MEMORY_PARTITION" in text:
        return _parse_partitions(text, source)
    listed = _parse_listed(text, source)
    tabled = _parse_table(text, source)
    problems = _problems(text)
    devices = listed or tabled
    if problems and devices:
        reason = "rocm-smi cannot read its sensors"
        fix = "stop what uses it and reset it: sudo rocm-smi --gpureset -d N; else reboot"
        bad = {problem.index for problem in problems}
        devices = tuple(
            d.with_facts(source, state=State.UNHEALTHY, reason=reason, fix=fix) if d.index in bad else d
            for d in devices
        )
    return Report(source=source, vendor=Vendor.AMD, devices=devices, problems=problems)


def _parse_version(text: str, source: str) -> Report:
    values: dict[str, str] = {}
    for part in text.replace("\n", " | ").split("|"):
        key, colon, value = part.partition(":")
        if colon:
            values.setdefault(key.strip().lower(), value.strip())
    rocm = known(values.get("rocm version"))
    tool = known(values.get("amdsmi tool")) or ""
    driver = known(values.get("amdgpu version"))
    kernel = re.search(r"Linux\s*version\s*(\d+\.\d+\.\d+[\w.-]*?)(?=\(|\s|$)", driver or "")
    notes = [Note(Severity.INFO, source, f"amd-smi {tool.partition('+')[0]}")] if tool else []
    return Report(
        source=source,
        vendor=Vendor.AMD,
        notes=tuple(notes),
        driver_version=f"in-kernel {kernel.group(1)}" if kernel else driver,
        runtime_version=f"ROCm {rocm}" if rocm else None,
    )


def _parse_partitions(text: str, source: str) -> Report:
    heading: list[str] = []
    devices: list[Accelerator] = []
    for line in text.splitlines():
        words = line.split()
        if words[:2] == ["GPU_ID", "MEMORY"]:
            heading = words
            continue
        row = dict(zip(heading, words, strict=False))
        index = integer(row.get("GPU_ID"))
        if index is None or len(words) < 2 or not re.match(r"^NPS\d|N/A", row.get("MEMORY", "")):
            continue
        memory, compute = known(row.get("MEMORY")), known(row.get("ACCELERATOR_TYPE"))
        mode = "/".join(part for part in (memory, compute) if part) or None
        devices.append(Accelerator.of(source, vendor=Vendor.AMD, index=index, partition_mode=mode))
    return Report(source=source, vendor=Vendor.AMD, devices=unique(devices))


def _parse_listed(text: str, source: str) -> tuple[Accelerator, ...]:
    values: dict[int, dict[str, str]] = {}
    for line in text.splitlines():
        found = _LISTED.match(line)
        if found:
            values.setdefault(int(found.group(1)), {}).setdefault(found.group(2).lower(), found.group(3))
    links = _links(text)
    for row in links:
        values.setdefault(row, {})
    return tuple(_listed_device(index, row, links, source) for index, row in values.items())


def _listed_device(index: int, row: dict[str, str], links: dict[int, tuple[Link, ...]], source: str) -> Accelerator:
    device_id = known(row.get("device id") or row.get("gpu id"))
    name = known(row.get("card series") or row.get("device name"))
    node = integer(row.get("(topology) numa node"))
    return checked_memory(
        Accelerator.of(
            source,
            vendor=Vendor.AMD,
            index=index,
            name=name if name and not name.startswith("0x") else None,
            pci_address=pci_address(row.get("pci bus")),
            pci_id=f"1002:{device_id[2:].lower()}"
            if device_id and re.fullmatch(r"0x[0-9a-fA-F]{4}", device_id)
            else None,
            memory_total_bytes=integer(row.get("vram total memory (b)")),
            memory_used_bytes=integer(row.get("vram total used memory (b)")),
            uuid=known(row.get("unique id")) if row.get("unique id") != "0x0" else None,
            architecture=known(row.get("gfx version")),
            utilisation_percent=number(row.get("gpu use (%)")),
            temperature_c=number(
                known(row.get("temperature (sensor junction) (c)")) or row.get("temperature (sensor edge) (c)")
            ),
            power_w=number(
                known(row.get("average graphics package power (w)"))
                or row.get("current socket graphics package power (w)")
            ),
            power_limit_w=number(row.get("max graphics package power (w)")),
            numa_node=node if node is not None and node >= 0 else None,  # -1: none
            links=links.get(index),
        )
    )


def _links(text: str) -> dict[int, tuple[Link, ...]]:
    sections = re.split(r"^=+ ?(.+?) ?=+\s*$", text, flags=re.MULTILINE)
    titled = dict(zip(sections[1::2], sections[2::2], strict=False))
    body = titled.get("Link Type between two GPUs")
    if body is None:
        return {}
    found = matrix.parse(body)
    return {row: found.links(row) for row in found.devices}


def _parse_table(text: str, source: str) -> tuple[Accelerator, ...]:
    """Concise tables: ROCm 6 and later by their ids column, earlier ones by the heading's words."""
    heading: list[str] = []
    plain: list[Accelerator] = []
    slices: dict[str, list[_Row]] = {}
    card: tuple[str, str] | None = None
    for line in text.splitlines():
        words = line.split()
        if words[:1] in (["GPU"], ["Device"]) and ("VRAM%" in words or {"AvgPwr", "Perf"} <= set(words)):
            heading = _REMARK.sub("", line).split()
            continue
        ids = _IDS.match(line) if "Device" in heading or not heading else None
        if ids:
            index, _, device_id, guid, rest = ids.groups()
            mode = _PARTITIONED.search(rest)
            if mode is None and (not heading or "Partitions" in heading):
                continue  # cut before it says whether it is a card or a slice of one
            group = mode.group(2) if mode else "SPX"
            place = mode.group(3) if mode else "0"
            if device_id != "N/A":
                card = (group, device_id.lower())
            elif place in ("0", "N/A"):
                card = (group, "n/a")
            elif card is None:
                continue  # a slice of a card that is not in the text
            # Only a card's first slice names it and its mode: the others follow with N/A and their number
            slices.setdefault(card[0], []).append((int(index), card[1], guid, place, line))
        elif (
            heading[:1] == ["GPU"]
            and len(words) >= 4
            and words[0].isascii()
            and words[0].isdigit()
            and len(words[0]) < 5
        ):
            plain.append(_plain_row(dict(zip(heading, words, strict=False)), int(words[0]), source))
    found = [device for group, rows in slices.items() for device in _sliced(group, rows, source)]
    return unique(sorted(found, key=lambda d: d.index or 0) if found else plain)


def _plain_row(row: dict[str, str], index: int, source: str) -> Accelerator:
    return Accelerator.of(
        source,
        vendor=Vendor.AMD,
        index=index,
        temperature_c=celsius(row.get("Temp", "")),
        power_w=number(row.get("AvgPwr")),
        power_limit_w=number(row.get("PwrCap")),
        memory_used_percent=percent(row.get("VRAM%", "")),
        utilisation_percent=percent(row.get("GPU%", "")),
    )


def _sliced(mode: str, rows: list[_Row], source: str) -> list[Accelerator]:
    """Whole cards in SPX mode; in another mode the n-th row of each partition number belongs to the n-th card."""
    by_index = {row[0]: row for row in sorted(rows, key=lambda row: row[0])}
    if mode in ("SPX", "N/A"):
        return [_sliced_device(mode, [row], source) for row in by_index.values()]
    cards: dict[tuple[str, int], list[_Row]] = {}
    seen: dict[tuple[str, str], int] = {}
    for row in by_index.values():
        _, device_id, _, partition, _ = row
        turn = seen.get((device_id, partition), 0)
        seen[device_id, partition] = turn + 1
        cards.setdefault((device_id, turn), []).append(row)
    return [_sliced_device(mode, card, source) for card in cards.values()]


def _sliced_device(mode: str, card: list[_Row], source: str) -> Accelerator:
    index, device_id, _, _, line = card[0]
    mode_said = known(mode)
    memory = re.search(r"NPS\d", line)
    watts = re.search(r"(\d+(?:\.\d+)?)W\s", line)
    limit = re.search(r"(\d+(?:\.\d+)?)W\s+\d+%\s+\d+%\s*$", line)
    shares = re.findall(r"(\d+)%", line)
    device = Accelerator.of(
        source,
        vendor=Vendor.AMD,
        index=index,
        pci_id=f"1002:{device_id.removeprefix('0x')}" if device_id.startswith("0x") else None,
        temperature_c=celsius(line),
        power_w=number(watts.group(1)) if watts else None,
        power_limit_w=number(limit.group(1)) if limit else None,
        memory_used_percent=float(shares[-2]) if len(shares) >= 2 else None,
        utilisation_percent=float(shares[-1]) if len(shares) >= 2 else None,
        partition_mode="/".join(part for part in (memory.group() if memory else None, mode_said) if part) or None,
    )
    if mode not in ("SPX", "N/A"):
        parts = tuple(Partition(index=row[0], profile=mode, instance=row[3], memory_group="VRAM") for row in card)
        device = device.with_facts(source, partitions=parts)
    return device


def _problems(text: str) -> tuple[Problem, ...]:
    found: dict[int | None, Problem] = {}
    for bad in _BAD.finditer(text):
        index = int(bad.group(1))
        reason = f"GPU {index} is in a bad state: rocm-smi cannot read its sensors"
        fix = "stop what uses it and reset it: sudo rocm-smi --gpureset -d N; else reboot"
        found.setdefault(index, Problem(State.UNHEALTHY, reason, fix, index=index))
    if not found and "Driver not initialized" in text:
        found[None] = Problem(State.DRIVER_MISSING, "the amdgpu driver is not loaded", "sudo modprobe amdgpu")
    return tuple(found.values())
