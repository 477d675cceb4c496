"""JSON of GPUStack's runtime (`detect` and `topology`): one form for many vendors."""

from __future__ import annotations

from typing import Any

from hwdetect import jsontext
from hwdetect.accelerator import Accelerator, Link, LinkKind, Vendor
from hwdetect.machine import Note, Severity
from hwdetect.report import Report, checked_memory, unique
from hwdetect.text import MIB, cpu_list, integer, known, pci_address
from hwdetect.vendors.nvidia_cores import multiprocessors

# The distances of its topology: what it calls a link, and the PCIe paths by length
_DISTANCES = {
    5: LinkKind.VENDOR, 10: LinkKind.PIX, 20: LinkKind.PXB, 30: LinkKind.PHB, 40: LinkKind.NODE, 50: LinkKind.SYS,
}  # fmt: skip
_LINKS = {
    Vendor.NVIDIA: LinkKind.NVLINK, Vendor.AMD: LinkKind.XGMI, Vendor.HYGON: LinkKind.XGMI,
    Vendor.ASCEND: LinkKind.HCCS, Vendor.METAX: LinkKind.METAXLINK, Vendor.MTHREADS: LinkKind.MTLINK,
}  # fmt: skip


def looks_like(text: str) -> bool:
    return '"manufacturer"' in text and ('"driver_version"' in text or '"devices_distances"' in text)


def parse(text: str, source: str) -> Report:
    whole = jsontext.load(text)
    notes: tuple[Note, ...] = ()
    if isinstance(whole, list):
        entries = [entry for entry in whole if isinstance(entry, dict)]
    elif isinstance(whole, dict) and "manufacturer" in whole:
        entries = [whole]
    else:
        entries = []
    if not entries or "manufacturer" not in entries[0]:
        entries = [entry for entry in jsontext.items(text) if "manufacturer" in entry]
        notes = (Note(Severity.WARNING, source, "the JSON is damaged: only complete entries were read"),)
    devices: list[Accelerator] = []
    for entry in entries:
        vendor = _vendor(entry)
        if vendor is not None and "devices_distances" in entry:
            devices += _topology(entry, vendor, source)
        elif vendor is not None and _whole(entry.get("index")) is not None:
            # It numbers every device: an entry without its number is what is left of one
            devices.append(_device(entry, vendor, source))
    strangers = {str(entry.get("manufacturer"))[:40] for entry in entries if _vendor(entry) is None}
    notes += tuple(Note(Severity.WARNING, source, f"unknown manufacturer {name}") for name in sorted(strangers))
    vendors = {device.vendor for device in devices}
    drivers = {device.driver_version for device in devices if device.driver_version}
    return Report(
        source=source,
        vendor=vendors.pop() if len(vendors) == 1 else None,
        devices=unique(devices),
        notes=notes,
        driver_version=drivers.pop() if len(drivers) == 1 else None,
    )


def _vendor(entry: dict[str, Any]) -> Vendor | None:
    try:
        return Vendor(str(entry.get("manufacturer")))
    except ValueError:
        return None


def _whole(value: Any) -> int | None:
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e15 else None


def _real(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _device(entry: dict[str, Any], vendor: Vendor, source: str) -> Accelerator:
    extra = entry.get("appendix")
    extra = extra if isinstance(extra, dict) else {}

    def text(value: Any) -> str | None:
        return known(jsontext.text_of(value))

    total, used = _whole(entry.get("memory")), _whole(entry.get("memory_used"))
    minor = _whole(extra.get("minor_number"))
    index = _whole(entry.get("index"))
    nodes = {
        Vendor.THEAD: (f"/dev/alixpu_ppu{index}",) if index is not None else None,
        Vendor.NVIDIA: (f"/dev/nvidia{minor}",) if minor is not None else None,
    }.get(vendor)
    name = text(entry.get("name"))
    if vendor is Vendor.ASCEND and name and not name.lower().startswith("ascend"):
        name = f"Ascend {name}"
    runtime = text(entry.get("runtime_version_original")) or text(entry.get("runtime_version"))
    return checked_memory(
        Accelerator.of(
            source,
            vendor=vendor,
            index=index,
            name=name,
            uuid=text(entry.get("uuid")),
            pci_address=pci_address(text(extra.get("bdf"))),
            card=_whole(extra.get("card_id")),
            chip=_whole(extra.get("device_id")),
            physical_id=_whole(extra.get("physical_id")),
            nodes=nodes,
            driver_version=text(entry.get("driver_version")),
            runtime_version=runtime,
            architecture=text(extra.get("arch_family")),
            compute_capability=text(entry.get("compute_capability")),
            compute_units=_compute_units(entry, vendor),
            memory_total_bytes=total * MIB if total is not None else None,
            memory_used_bytes=used * MIB if used is not None else None,
            utilisation_percent=_real(entry.get("cores_utilization")),
            temperature_c=_real(entry.get("temperature")),
            power_w=_real(entry.get("power_used")),
            power_limit_w=_real(entry.get("power")),
            health=text(entry.get("memory_status")),
            partition_mode="MIG" if extra.get("mig") is True else None,
            numa_node=integer(text(extra.get("numa"))),
        )
    )


def _compute_units(entry: dict[str, Any], vendor: Vendor) -> int | None:
    cores = _whole(entry.get("cores"))
    return multiprocessors(cores, entry.get("compute_capability")) if vendor is Vendor.NVIDIA else cores


def _topology(entry: dict[str, Any], vendor: Vendor, source: str) -> list[Accelerator]:
    distances = entry.get("devices_distances")
    cpus = entry.get("devices_cpu_affinities")
    numa = entry.get("devices_numa_affinities")
    rows = distances if isinstance(distances, list) else []
    # Each device is nearest to itself: anything else is a matrix that was damaged, and its numbering means nothing
    square = all(isinstance(row, list) and len(row) == len(rows) for row in rows)
    if not square or any(row[index] != 0 for index, row in enumerate(rows)):
        return []
    found: list[Accelerator] = []
    for index, row in enumerate(rows):
        links = tuple(_link(peer, _whole(distance), vendor) for peer, distance in enumerate(row) if peer != index)
        found.append(
            Accelerator.of(
                source,
                vendor=vendor,
                index=index,
                links=links,
                cpu_affinity=cpu_list(jsontext.text_of(_at(cpus, index))) or None,
                numa_node=integer(jsontext.text_of(_at(numa, index))),
            )
        )
    return found


def _at(values: Any, index: int) -> Any:
    return values[index] if isinstance(values, list) and index < len(values) else None


def _link(peer: int, distance: int | None, vendor: Vendor) -> Link:
    kind = _DISTANCES.get(distance if distance is not None else -1, LinkKind.UNKNOWN)
    if kind is LinkKind.VENDOR:
        kind = _LINKS.get(vendor, LinkKind.VENDOR)
    return Link(peer, kind, f"distance {distance}")
