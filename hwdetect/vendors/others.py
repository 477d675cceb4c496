"""Tools with one simple form each: Iluvatar's `ixsmi -q`, Gaudi's `hl-smi -Q`, MetaX's topology and list."""

from __future__ import annotations

import re

from hwdetect.accelerator import Accelerator, State, Vendor
from hwdetect.report import Report, unique
from hwdetect.text import key_values, known, mib, pci_address
from hwdetect.vendors import matrix, nvidia_csv


def parse_iluvatar_details(text: str, source: str) -> Report:
    """`ixsmi -q`: each `Product Name` begins a device."""
    blocks: list[dict[str, str]] = []
    common: dict[str, str] = {}
    for _, key, value in key_values(text.splitlines()):
        if key == "Product Name":
            blocks.append({})
        target = blocks[-1] if blocks else common
        target.setdefault(key, value)
    devices = []
    for position, block in enumerate(_distinct(blocks)):
        merged = {**common, **block}
        cuda = next((v for k, v in merged.items() if k.startswith("CUDA Version")), None)
        devices.append(
            Accelerator.of(
                source,
                vendor=Vendor.ILUVATAR,
                index=position,
                name=known(merged.get("Product Name")),
                uuid=known(merged.get("GPU UUID")),
                pci_address=pci_address(merged.get("Bus Id")),
                driver_version=known(merged.get("Driver Version")),
                runtime_version=f"CUDA API {cuda}" if known(cuda) else None,
                memory_total_bytes=mib(merged.get("Total")),
                ecc_enabled={"Enabled": True, "Disabled": False}.get(merged.get("ECC Mode", "")),
            )
        )
    drivers = {d.driver_version for d in devices if d.driver_version}
    return Report(
        source=source,
        vendor=Vendor.ILUVATAR,
        devices=unique(devices),
        driver_version=drivers.pop() if len(drivers) == 1 else None,
    )


def _distinct(blocks: list[dict[str, str]]) -> list[dict[str, str]]:
    """One block for each device, by the strongest number that any block has; without one the first alone counts."""
    for name in ("GPU UUID", "Bus Id", "Serial Number"):
        found: dict[str, dict[str, str]] = {}
        for block in blocks:
            # What begins like a number that was seen is that number, cut
            if known(block.get(name)) and not any(seen.startswith(block[name]) for seen in found):
                found[block[name]] = block
        if found:
            return list(found.values())
    return blocks[:1]


def parse_metax_topology(text: str, source: str) -> Report:
    found = matrix.parse(text)
    attached = re.search(r"Attached GPUs\s*:\s*(\d{1,4})", text)
    devices = tuple(
        Accelerator.of(
            source,
            vendor=Vendor.METAX,
            index=row,
            links=found.links(row),
            cpu_affinity=found.cpus.get(row),
            numa_node=found.numa.get(row),
        )
        for row in found.devices
    )
    return Report(
        source=source,
        vendor=Vendor.METAX,
        devices=devices,
        expected_devices=int(attached.group(1)) if attached else None,
    )


_METAX_LISTED = re.compile(
    r"^\s*GPU#(\d{1,4})\s+(\S.*?)\s+((?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])\s+"
    r"(Not Available|[A-Za-z]+)\s*(?:\(UUID:\s*([^)]*)\)?|\(([^)]*)\)?)?",
    re.MULTILINE,
)


def parse_metax_list(text: str, source: str) -> Report:
    """`mx-smi -L`: number, name, address, state and UUID, or why there is none."""
    devices = []
    for found in _METAX_LISTED.finditer(text):
        index, name, address, state, uuid, why = found.groups()
        device = Accelerator.of(
            source,
            vendor=Vendor.METAX,
            index=int(index),
            name=known(name),
            pci_address=pci_address(address),
            uuid=known(uuid),
            health=state,
        )
        if state != "Available":
            reason = f"mx-smi calls it {state}" + (f": {why}" if why else "")
            device = device.with_facts(source, state=State.UNHEALTHY, reason=reason, fix="sudo dmesg | grep -i metax")
        devices.append(device)
    return Report(source=source, vendor=Vendor.METAX, devices=unique(devices))


def parse_gaudi_query(text: str, source: str) -> Report:
    return nvidia_csv.parse(text, source.replace("-Q ", "--query-gpu="), Vendor.GAUDI)
