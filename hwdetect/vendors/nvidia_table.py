"""The default table of nvidia-smi from driver 3xx to 6xx, on Linux and Windows, and the messages it prints instead."""

from __future__ import annotations

import re

from hwdetect.accelerator import Accelerator, DeviceProcess, Partition, State, Vendor
from hwdetect.machine import Note, Severity
from hwdetect.report import Problem, Report, checked_memory, unique
from hwdetect.text import integer, known, mib, pci_address
from hwdetect.vendors.box import Row, cells_of, celsius, percent, rows, sizes, title_value, watts

_FIRST = re.compile(r"^\s*(\d{1,4})\.?\s+(.+?)(?:\s+(On|Off|N/A|WDDM|TCC|MCDM))?\s*$")
_MIG = re.compile(r"^\s*(\d{1,4})\s+(\d{1,4})\s+(\d{1,4})\s+(\d{1,4})\s*$")
_PROCESS = re.compile(
    r"^\s*(\d{1,4})\s+(?:(\d+|N/A)\s+(\d+|N/A)\s+)?(\d{1,10})\s+([CG+MP]{1,5})\s+(.*?)\s+(\d+\s*[KMG]i?B|N/A)?\s*$"
)
# "GPU 0000:02:00.0: ..." of old drivers, "GPU0000:02:00.0: ..." and "GPU1: 0000:02:00.0: ..." of newer ones
_LOST = re.compile(
    r"Unable to determine the device handle for GPU\s*(?:(\d{1,4})\s*:\s+(?=[0-9a-f]{4,8}:))?"
    r":?\s*(\S+?):?\s+(?:is\s+)?(.*)$",
    re.MULTILINE | re.IGNORECASE,
)

_FAILED = "nvidia-smi prints ERR! where its name, errors, load or slices belong: it does not answer"
_FAILED_FIX = "look for Xid errors: sudo dmesg | grep -i xid; then reset it: sudo nvidia-smi -r -i N; else reboot"
DRIVER_FIX = "install or load the NVIDIA driver: sudo modprobe nvidia; then check with: nvidia-smi"


def looks_like(text: str) -> bool:
    return "NVIDIA-SMI" in text or bool(_LOST.search(text)) or any(mark in text for mark, _ in _MESSAGES)


def parse(text: str, source: str) -> Report:
    problems = tuple(problems_of(text))
    found = rows(text, _starts)
    processes = _processes(text) if "Processes" in text else None
    partitions = _partitions(text)
    devices = unique(_device(row, source, processes, partitions) for row in found)
    driver = title_value(text, "Driver Version", "KMD Version")
    runtime = title_value(text, "CUDA UMD Version", "CUDA Version")
    devices = tuple(
        d.with_facts(source, driver_version=driver, runtime_version=f"CUDA {runtime}" if runtime else None)
        for d in devices
    )
    notes = []
    if found and not problems and driver is None:
        notes.append(Note(Severity.INFO, source, "the heading is missing: driver version unknown"))
    return Report(
        source=source,
        vendor=Vendor.NVIDIA,
        devices=devices,
        problems=problems,
        notes=tuple(notes),
        driver_version=driver,
        runtime_version=f"CUDA {runtime}" if runtime else None,
    )


def _starts(cells: list[str]) -> tuple[int, str] | None:
    if len(cells) < 2:
        return None
    found = _FIRST.match(cells[0])
    if not found or not re.search(r"[A-Za-z]", found.group(2)) or "%" in found.group(2)[:4]:
        return None
    bus = cells[1].split()
    if not bus or not (pci_address(cells[1]) or bus[0] == "N/A"):
        return None
    return int(found.group(1)), found.group(2)


def _device(
    row: Row, source: str, processes: dict[int, list[DeviceProcess]] | None, partitions: dict[int, list[Partition]]
) -> Accelerator:
    name = row.title.strip()
    used, total = sizes(row.cell(1, 1)) or (None, None)
    draw, limit = watts(row.cell(1, 0))
    ecc = row.cell(0, 2)
    mig = row.cell(2, 2)
    own = partitions.get(row.index, [])
    not_supported = "not supported" in row.cell(1, 1).lower()
    unified = True if not_supported else None
    device = Accelerator.of(
        source,
        vendor=Vendor.NVIDIA,
        index=row.index,
        name=known(name),
        pci_address=pci_address(row.cell(0, 1)),
        memory_total_bytes=total,
        memory_used_bytes=used,
        unified=unified,
        temperature_c=celsius(row.cell(1, 0)),
        power_w=draw,
        power_limit_w=limit,
        utilisation_percent=percent(row.cell(1, 2)),
        ecc_enabled=True if ecc == "On" or ecc.isdigit() else False if ecc == "Off" else None,
        ecc_uncorrected=integer(ecc),
        partition_mode={"Enabled": "MIG", "Disabled": "none"}.get(mig),
        partitions=tuple(own) or None,
        processes=tuple(processes.get(row.index, ())) if processes is not None else None,
    )
    failed = "ERR!" in (name, ecc, mig) or "ERR!" in row.cell(1, 2)
    if failed:  # a sensor alone may fail on a card that works: fan and power do not count
        device = device.with_facts(source, state=State.UNHEALTHY, reason=_FAILED, fix=_FAILED_FIX)
    if name.endswith("..."):
        device = device.with_facts(source, warnings=("the table cuts the name; nvidia-smi -L has it in full",))
    return checked_memory(device)


def _partitions(text: str) -> dict[int, list[Partition]]:
    found: dict[int, dict[int, Partition]] = {}
    for section, cells in cells_of(text):
        numbers = _MIG.match(cells[0]) if cells and section == "mig" and len(cells) >= 2 else None
        if not numbers or not cells:
            continue
        gpu, instance, compute, index = (int(n) for n in numbers.groups())
        used, total = sizes(cells[1]) or (None, None)
        units = re.match(r"\s*(\d+)", cells[2]) if len(cells) > 2 else None
        found.setdefault(gpu, {}).setdefault(
            index,
            Partition(
                index=index,
                memory_total_bytes=total,
                memory_used_bytes=used,
                memory_group=f"GI {instance}",
                instance=f"GI {instance} CI {compute}",
                compute_units=int(units.group(1)) if units else None,
            ),
        )
    return {gpu: list(parts.values()) for gpu, parts in found.items()}


def _processes(text: str) -> dict[int, list[DeviceProcess]]:
    found: dict[int, dict[int, DeviceProcess]] = {}
    for section, cells in cells_of(text):
        row = _PROCESS.match(cells[0]) if cells and len(cells) == 1 and section == "processes" else None
        if row:
            gpu, _, _, pid, kind, name, size = row.groups()
            found.setdefault(int(gpu), {}).setdefault(
                int(pid), DeviceProcess(int(pid), known(name), mib(size), "C" in kind)
            )
    return {gpu: list(by_pid.values()) for gpu, by_pid in found.items()}


_MESSAGES: tuple[tuple[str, Problem], ...] = (
    (
        "couldn't communicate with the NVIDIA driver",
        Problem(State.DRIVER_MISSING, "the NVIDIA driver is not loaded", DRIVER_FIX),
    ),
    (
        "Driver/library version mismatch",
        Problem(
            State.VERSION_MISMATCH,
            "the loaded NVIDIA kernel module and the installed library have different versions",
            "reboot, or reload it: sudo rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia; sudo modprobe nvidia",
        ),
    ),
    (
        "Failed to initialize NVML: Insufficient Permissions",
        Problem(
            State.NO_PERMISSION,
            "this user may not open the NVIDIA device nodes",
            "give access: sudo chmod a+rw /dev/nvidia*",
        ),
    ),
    (
        "No devices were found",
        Problem(
            State.UNHEALTHY,
            "the driver is loaded and found no GPU that it could initialise",
            "look for RmInitAdapter in the kernel log: sudo dmesg | grep -i NVRM",
        ),
    ),
    (
        "Failed to initialize NVML: Driver Not Loaded",
        Problem(State.DRIVER_MISSING, "the NVIDIA driver is not loaded", DRIVER_FIX),
    ),
    (
        "GPU access blocked by the operating system",
        Problem(
            State.NO_PERMISSION,
            "the operating system does not let this process use the GPU",
            "under WSL 2: wsl --update, then wsl --shutdown; also update Windows' NVIDIA driver",
        ),
    ),
    (
        "couldn't find libnvidia-ml.so",
        Problem(
            State.DRIVER_MISSING,
            "the NVIDIA driver's library libnvidia-ml.so is not installed or not found",
            "install the driver, or start the container with --gpus all; then: sudo ldconfig",
        ),
    ),
    (
        "Failed to initialize NVML",
        Problem(State.UNKNOWN, "NVML could not be initialised", "check the driver with: nvidia-smi"),
    ),
    (
        "Segmentation fault",
        Problem(State.UNKNOWN, "nvidia-smi crashed", "update the driver; under WSL 2 update Windows' NVIDIA driver"),
    ),
    (
        "nvidia-smi: command not found",
        Problem(State.UNKNOWN, "nvidia-smi is not installed", "install the driver's utilities; Jetson has tegrastats"),
    ),
)


def problems_of(text: str) -> list[Problem]:
    """What the tool's messages say, above, below or instead of what was asked for."""
    found = next((problem for mark, problem in _MESSAGES if mark in text), None)
    problems = [found] if found else []
    for handle in _LOST.finditer(text):
        number, where, words = handle.groups()
        address = pci_address(where.rstrip(":"))
        said = words.strip() or "unknown error"
        lost = "lost" in said.lower()
        problem = Problem(
            State.LOST if lost else State.UNHEALTHY,
            f"GPU {address or where} does not answer: {said.split('.')[0]}",
            "reboot the machine; if it comes back, reseat the card and check power and the kernel log for Xid errors",
            address,
            int(number) if number else None,
        )
        if problem not in problems:
            problems.append(problem)
    return problems
