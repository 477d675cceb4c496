"""What changed between two descriptions of one machine: devices lost and back, states, limits."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from hwdetect.accelerator import Accelerator
from hwdetect.machine import Machine


class ChangeKind(StrEnum):
    ACCELERATOR_LOST = "accelerator_lost"
    ACCELERATOR_FOUND = "accelerator_found"
    ACCELERATOR_STATE = "accelerator_state"
    ACCELERATOR_MEMORY = "accelerator_memory"
    CPU_LIMIT = "cpu_limit"
    MEMORY_LIMIT = "memory_limit"


@dataclass(frozen=True, slots=True)
class Change:
    kind: ChangeKind
    subject: str
    before: str
    after: str
    reason: str = ""


def changes(before: Machine, after: Machine) -> tuple[Change, ...]:
    """Only what planning must react to: free memory and temperatures move all the time and are not in it."""
    found: list[Change] = []
    old, new = _keyed(before), _keyed(after)
    for key, device in old.items():
        if key not in new:
            found.append(
                Change(ChangeKind.ACCELERATOR_LOST, _subject(device), device.state, "gone", "no source lists it")
            )
    for key, device in new.items():
        earlier = old.get(key)
        if earlier is None:
            found.append(Change(ChangeKind.ACCELERATOR_FOUND, _subject(device), "absent", device.state, device.reason))
            continue
        if earlier.state != device.state:
            found.append(
                Change(ChangeKind.ACCELERATOR_STATE, _subject(device), earlier.state, device.state, device.reason)
            )
        if earlier.memory_total_bytes != device.memory_total_bytes and not device.unified:
            sizes = str(earlier.memory_total_bytes), str(device.memory_total_bytes)
            found.append(Change(ChangeKind.ACCELERATOR_MEMORY, _subject(device), *sizes))
    if before.cpu.usable_threads != after.cpu.usable_threads:
        counts = str(before.cpu.usable_threads), str(after.cpu.usable_threads)
        found.append(Change(ChangeKind.CPU_LIMIT, "cpu", *counts, "affinity, quota or CPUs taken offline"))
    limits = before.memory.effective_limit_bytes, after.memory.effective_limit_bytes
    if limits[0] != limits[1]:
        found.append(Change(ChangeKind.MEMORY_LIMIT, "memory", str(limits[0]), str(limits[1])))
    return tuple(found)


def _keyed(machine: Machine) -> dict[tuple[object, ...], Accelerator]:
    found: dict[tuple[object, ...], Accelerator] = {}
    for device in machine.accelerators:
        key = (device.vendor, device.uuid or device.pci_address or device.index, device.chip)
        found.setdefault(key, device)
    return found


def _subject(device: Accelerator) -> str:
    where = f" at {device.pci_address}" if device.pci_address else ""
    return f"{device.vendor}:{device.index} {device.name or ''}{where}".strip()
