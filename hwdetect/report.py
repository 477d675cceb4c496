"""What one text (a tool's output, a file) says about a machine, before it is merged with what others say."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hwdetect.accelerator import Accelerator, Link, Partition, State, Vendor
from hwdetect.machine import Cgroup, Cpu, Host, Memory, Note, NumaNode, Severity


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a device, or every device of a vendor if no address is named, cannot be used."""

    state: State
    reason: str
    fix: str = ""
    pci_address: str | None = None
    index: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """`devices` are only those that the text lists; devices it names as lost are in `problems`."""

    source: str
    vendor: Vendor | None = None
    devices: tuple[Accelerator, ...] = ()
    problems: tuple[Problem, ...] = ()
    notes: tuple[Note, ...] = ()
    driver_version: str | None = None
    runtime_version: str | None = None
    expected_devices: int | None = None  # how many the tool says there are
    host: Host | None = None
    cpu: Cpu | None = None
    memory: Memory | None = None
    numa: tuple[NumaNode, ...] = ()
    cgroup: Cgroup | None = None
    understood: bool = False  # the text was read in full although it names no device

    @property
    def said_nothing(self) -> bool:
        """True if neither a device nor a problem nor a host fact was understood."""
        host = (self.cpu, self.memory, self.cgroup)
        return not (self.understood or self.devices or self.problems or self.numa or any(host) or self.driver_version)


Parser = Callable[[str, str], Report]
"""A cleaned text and the name of its source make a Report; a parser never raises on text."""


def unique(devices: Iterable[Accelerator]) -> tuple[Accelerator, ...]:
    """The first of each device: a line printed twice is one device; one that repeats another's number is none."""
    seen: set[tuple[object, ...]] = set()
    kept: list[Accelerator] = []
    for device in devices:
        numbers: set[tuple[object, ...]] = set()
        if device.index is not None:
            numbers.add((device.vendor, "index", device.index))
        key = identity(device)
        if key is not None:
            numbers.add((device.vendor, *key))
        if seen.isdisjoint(numbers):
            kept.append(device)
        seen |= numbers
    return tuple(kept)


def identity(device: Accelerator) -> tuple[object, ...] | None:
    """What tells this device from its neighbours in one text: chip of a card, else address, UUID or index."""
    if device.card is not None and device.chip is not None:
        return ("chip", device.card, device.chip)
    if device.pci_address is not None:
        return ("address", device.pci_address)
    if device.uuid is not None:
        return ("uuid", device.uuid)
    return ("index", device.index) if device.index is not None else None


def checked_memory(device: Accelerator) -> Accelerator:
    """Drop memory figures that contradict each other: a used or free part above the total cannot be trusted."""
    total, used, free = device.memory_total_bytes, device.memory_used_bytes, device.memory_free_bytes
    negative = any(part is not None and part < 0 for part in (total, used, free, device.memory_reserved_bytes))
    if total is None and not negative:
        return device
    total = total or 0
    reserved = device.memory_reserved_bytes or 0
    parts = (used or 0) + (free or 0)
    too_much = any(part is not None and part > total for part in (used, free, reserved))
    # Tools round each figure and older ones leave the reserved part out of all but the total
    complete = used is not None and free is not None
    mismatch = complete and (parts > total + total // 50 or parts + reserved < total - total // 8)
    if not (negative or too_much or mismatch):
        return device
    warning = "memory figures contradict each other and are left out"
    return dataclasses.replace(
        device,
        memory_total_bytes=None,
        memory_used_bytes=None,
        memory_free_bytes=None,
        memory_reserved_bytes=None,
        warnings=(*device.warnings, warning),
    )


def link_groups(devices: Iterable[Accelerator]) -> tuple[tuple[int, ...], ...]:
    """Sets of device indices that direct links (NVLink, XGMI, HCCS, ...) connect, largest first, without singles."""
    neighbours: dict[int, set[int]] = {}
    for device in devices:
        if device.index is None:
            continue
        for link in device.links or ():
            if link.kind.is_direct and link.peer is not None:
                neighbours.setdefault(device.index, set()).add(link.peer)
                neighbours.setdefault(link.peer, set()).add(device.index)
    groups: list[tuple[int, ...]] = []
    while neighbours:
        frontier, group = [next(iter(neighbours))], set[int]()
        while frontier:
            index = frontier.pop()
            if index not in group:
                group.add(index)
                frontier.extend(neighbours.pop(index, ()))
        groups.append(tuple(sorted(group)))
    return tuple(sorted(groups, key=lambda group: (-len(group), group)))


def unreadable(source: str, vendor: Vendor | None, text: str) -> Report:
    """A report that says that nothing in the text was understood."""
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    shown = first[:120] or "no output"
    return Report(
        source=source,
        vendor=vendor,
        notes=(Note(Severity.WARNING, source, f"nothing in the output was understood: {shown}"),),
    )


def merged(first: Iterable[Accelerator], more: Iterable[Accelerator]) -> tuple[Accelerator, ...]:
    """Devices of two reports about the same vendor: what is unknown in the first is taken from the second.

    Two are one device if their address (and chip), UUID or, where neither side has those, their index agree.
    """
    found = list(first)
    for device in more:
        place = _place(found, device)
        if place is None:
            found.append(device)
        else:
            filled = found[place].filled_from(device)
            filled = dataclasses.replace(filled, partitions=_partitions(filled.partitions, device.partitions))
            extra = tuple(w for w in device.warnings if w not in filled.warnings)
            found[place] = dataclasses.replace(filled, warnings=filled.warnings + extra)
    return tuple(found)


def _partitions(first: tuple[Partition, ...], more: tuple[Partition, ...]) -> tuple[Partition, ...]:
    others = {part.index: part for part in more}
    merged: list[Partition] = []
    for part in first:
        other = others.get(part.index)
        names = [f.name for f in dataclasses.fields(part) if getattr(part, f.name) is None]
        merged.append(dataclasses.replace(part, **{name: getattr(other, name) for name in names}) if other else part)
    return tuple(merged)


def _place(devices: list[Accelerator], wanted: Accelerator) -> int | None:
    for n, device in enumerate(devices):
        if device.uuid and wanted.uuid:
            if device.uuid == wanted.uuid:
                return n
            continue
        if device.pci_address and wanted.pci_address:
            same_chip = None in (device.chip, wanted.chip) or device.chip == wanted.chip
            if device.pci_address == wanted.pci_address and same_chip:
                return n
            continue
        if device.index is not None and device.index == wanted.index:
            return n
    return None


def with_links(devices: Iterable[Accelerator], links: dict[int, tuple[Link, ...]], source: str) -> list[Accelerator]:
    """Devices with the links found for their index."""
    return [
        device.with_facts(source, links=links[device.index]) if device.index in links else device for device in devices
    ]
