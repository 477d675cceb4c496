"""`nvidia-smi -q -x`, schemas v10 to v13, also cut or damaged: a scanner that takes the elements it finds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import unescape

from hwdetect.accelerator import Accelerator, DeviceProcess, Partition, Vendor
from hwdetect.machine import Note, Severity
from hwdetect.report import Report, checked_memory, unique
from hwdetect.text import integer, known, number, pci_address, sized
from hwdetect.vendors import nvidia_csv

_TAG = re.compile(r"<(/?)([A-Za-z_][\w.-]*)([^<>]*?)(/?)>([^<]*)")
_ID = re.compile(r'\bid\s*=\s*"([^"]*)"')
_DEEPEST = 40


@dataclass
class Element:
    tag: str
    attributes: str = ""
    text: str = ""
    children: list[Element] = field(default_factory=list)

    def child(self, *path: str) -> Element | None:
        here: Element | None = self
        for tag in path:
            here = next((c for c in here.children if c.tag == tag), None) if here else None
        return here

    def value(self, *path: str) -> str | None:
        found = self.child(*path)
        return known(unescape(found.text)) if found else None

    def every(self, tag: str) -> Iterator[Element]:
        for child in self.children:
            if child.tag == tag:
                yield child
            else:
                yield from child.every(tag)


def looks_like(text: str) -> bool:
    return "<nvidia_smi_log" in text or ("<gpu " in text and "<product_name>" in text)


def scan(text: str) -> Element:
    """A tree of whatever tags there are. An element never contains another `gpu`; stray end tags are ignored."""
    root = Element("")
    stack = [root]
    for closing, tag, attributes, empty, content in _TAG.findall(text):
        if closing:
            if any(element.tag == tag for element in stack[1:]):
                while stack.pop().tag != tag:
                    pass
            continue
        if tag == "gpu":
            while any(element.tag == "gpu" for element in stack):
                stack.pop()
        element = Element(tag, attributes, content.strip())
        stack[-1].children.append(element)
        if not empty and len(stack) < _DEEPEST:
            stack.append(element)
    return root


def parse(text: str, source: str) -> Report:
    root = scan(text)
    driver = next((known(e.text) for e in root.every("driver_version")), None)
    cuda = next((known(e.text) for e in root.every("cuda_version")), None)
    attached = next((integer(e.text) for e in root.every("attached_gpus")), None)
    runtime = f"CUDA {cuda}" if cuda else None
    found = unique(_device(gpu, n, source) for n, gpu in enumerate(root.every("gpu")) if gpu.children)
    devices = tuple(d.with_facts(source, driver_version=driver, runtime_version=runtime) for d in found)
    notes: tuple[Note, ...] = ()
    if attached is not None and attached != len(devices):
        said = f"the driver says {attached} GPUs are attached and describes {len(devices)}"
        notes = (Note(Severity.WARNING, source, said, "look for lost GPUs: nvidia-smi -L; sudo dmesg | grep -i xid"),)
    return Report(
        source=source,
        vendor=Vendor.NVIDIA,
        devices=devices,
        notes=notes,
        driver_version=driver,
        runtime_version=runtime,
        expected_devices=attached,
    )


def _device(gpu: Element, position: int, source: str) -> Accelerator:
    identity = _ID.search(gpu.attributes)
    address = gpu.value("pci", "pci_bus_id") or (identity.group(1) if identity else None)
    memory = gpu.child("fb_memory_usage") or Element("")
    mode = gpu.value("mig_mode", "current_mig")
    link = ("pci", "pci_gpu_link_info")
    ids = gpu.value("pci", "pci_device_id") or ""
    ids = ids.removeprefix("0x")
    power = gpu.child("gpu_power_readings") or gpu.child("power_readings") or Element("")
    device = Accelerator.of(
        source,
        vendor=Vendor.NVIDIA,
        index=position,
        name=gpu.value("product_name"),
        uuid=gpu.value("uuid"),
        pci_address=pci_address(address),
        pci_id=f"{ids[4:]}:{ids[:4]}".lower() if re.fullmatch(r"[0-9A-Fa-f]{4}10[Dd][Ee]", ids) else None,
        nodes=_nodes(gpu) or None,
        architecture=gpu.value("product_architecture"),
        memory_total_bytes=sized(memory.value("total")),
        memory_used_bytes=sized(memory.value("used")),
        memory_free_bytes=sized(memory.value("free")),
        memory_reserved_bytes=sized(memory.value("reserved")),
        unified=True if (gpu.value("addressing_mode") or "").upper() == "ATS" and not memory.value("total") else None,
        utilisation_percent=number(gpu.value("utilization", "gpu_util")),
        temperature_c=number(gpu.value("temperature", "gpu_temp")),
        power_w=number(
            power.value("instant_power_draw") or power.value("average_power_draw") or power.value("power_draw")
        ),
        power_limit_w=number(power.value("current_power_limit") or power.value("power_limit")),
        ecc_enabled=_enabled(gpu.value("ecc_mode", "current_ecc")),
        ecc_uncorrected=_uncorrected(gpu),
        health=gpu.value("gpu_recovery_action"),
        partition_mode={"Enabled": "MIG", "Disabled": "none"}.get(mode or ""),
        partitions=tuple(_partitions(gpu)) or None,
        processes=_processes(gpu),
        pcie_generation=integer(gpu.value(*link, "pcie_gen", "current_link_gen")),
        pcie_generation_max=integer(gpu.value(*link, "pcie_gen", "max_link_gen")),
        pcie_width=integer((gpu.value(*link, "link_widths", "current_link_width") or "").rstrip("x")),
        pcie_width_max=integer((gpu.value(*link, "link_widths", "max_link_width") or "").rstrip("x")),
    )
    sizes = [part.text for name in ("total", "used") if (part := memory.child(name)) is not None]
    device = nvidia_csv.marked_broken(device, source, *sizes)
    warnings = tuple(_warnings(gpu))
    return checked_memory(device.with_facts(source, warnings=warnings) if warnings else device)


def _nodes(gpu: Element) -> tuple[str, ...]:
    minor = integer(gpu.value("minor_number"))
    return (f"/dev/nvidia{minor}",) if minor is not None else ()


def _enabled(text: str | None) -> bool | None:
    return {"enabled": True, "disabled": False}.get((text or "").lower())


def _uncorrected(gpu: Element) -> int | None:
    """Uncorrected errors since the driver was loaded: newer schemas count SRAM and DRAM apart, older ones in total."""
    volatile = gpu.child("ecc_errors", "volatile")
    if volatile is None:
        return None
    names = ("sram_uncorrectable", "sram_uncorrectable_parity", "sram_uncorrectable_secded", "dram_uncorrectable")
    counts = [integer(volatile.value(name)) for name in names]
    counts += [integer(volatile.value("double_bit", "total"))]
    measured = [count for count in counts if count is not None]
    return sum(measured) if measured else None


def _partitions(gpu: Element) -> Iterator[Partition]:
    seen: set[int] = set()
    for device in gpu.every("mig_device"):
        index = integer(device.value("index"))
        instance = integer(device.value("gpu_instance_id"))
        if index is None or index in seen:
            continue
        seen.add(index)
        yield Partition(
            index=index,
            memory_total_bytes=sized(device.value("fb_memory_usage", "total")),
            memory_used_bytes=sized(device.value("fb_memory_usage", "used")),
            memory_group=f"GI {instance}" if instance is not None else None,
            instance=f"GI {instance} CI {device.value('compute_instance_id')}" if instance is not None else None,
            compute_units=integer(device.value("device_attributes", "shared", "multiprocessor_count")),
        )


def _processes(gpu: Element) -> tuple[DeviceProcess, ...] | None:
    block = gpu.child("processes")
    if block is None:
        return None
    found: dict[int, DeviceProcess] = {}
    for entry in block.every("process_info"):
        pid = integer(entry.value("pid"))
        if pid is not None:
            kind = entry.value("type")
            found.setdefault(
                pid,
                DeviceProcess(
                    pid, entry.value("process_name"), sized(entry.value("used_memory")), "C" in kind if kind else None
                ),
            )
    return tuple(found.values())


def _warnings(gpu: Element) -> Iterator[str]:
    if gpu.value("remapped_rows", "remapped_row_failure") == "Yes":
        yield "memory row remapping failed: the card needs replacing"
    if gpu.value("remapped_rows", "remapped_row_pending") == "Yes":
        yield "a memory row remap is pending: reset the GPU or reboot"
    if gpu.value("retired_pages", "pending_retirement") == "Yes":
        yield "memory pages wait to be retired: reboot"
    if gpu.value("gpu_recovery_action"):
        yield f"the driver asks for a recovery action: {gpu.value('gpu_recovery_action')}"
