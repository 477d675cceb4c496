"""NVIDIA on a live machine or a recorded one: NVML first, nvidia-smi where it cannot be asked, /proc in any case."""

from __future__ import annotations

import dataclasses
import sys
import time
from typing import Any

from hwdetect import command, jsontext
from hwdetect.accelerator import Accelerator, DeviceProcess, Link, LinkKind, Partition, State, Vendor
from hwdetect.machine import Note, Severity
from hwdetect.report import Problem, Report, checked_memory, unique
from hwdetect.text import clean, pci_address
from hwdetect.tree import Tree
from hwdetect.vendors import nvidia_csv, nvidia_table, nvidia_topo, nvidia_xml
from hwdetect.vendors.nvidia_cores import multiprocessors

_GPUS = "/proc/driver/nvidia/gpus"
_LEVELS = {0: LinkKind.PIX, 10: LinkKind.PIX, 20: LinkKind.PXB, 30: LinkKind.PHB, 40: LinkKind.NODE, 50: LinkKind.SYS}


def probe() -> list[Report]:
    """What the driver says, asked in the order of trust; later reports only fill what earlier ones left open.

    Blocks: three seconds for all of it, since a driver that hangs hangs every caller
    """
    deadline = time.monotonic() + command.LIMIT_S
    library = ask_library()
    if library.devices:
        if len(library.devices) > 1:
            return [library, *_run(deadline, "topo", "-m")]
        return [library]
    reports = _run(deadline, "-q", "-x")
    if any(report.devices for report in reports):
        count = sum(len(report.devices) for report in reports)
        reports += _run(deadline, f"--query-gpu={nvidia_csv.QUERY}", "--format=csv")
        reports += _run(deadline, "topo", "-m") if count > 1 else []
        return [*reports, dataclasses.replace(library, problems=())]
    # One lost GPU makes the whole listing fail: the csv query and the list still name the others
    reports += _run(deadline, f"--query-gpu={nvidia_csv.QUERY}", "--format=csv")
    reports += _run(deadline, "-L")
    return [*reports, library]


def ask_library() -> Report:
    """NVML's answers, from a process of its own."""
    source = "NVML"
    output = command.run([sys.executable, "-I", "-c", _BOOT.format(path=command.module_path()), "nvml"])
    if output is None or output.timed_out:
        note = Note(Severity.WARNING, source, "NVML did not answer within 3 s", "check the driver with: nvidia-smi")
        return Report(source=source, vendor=Vendor.NVIDIA, notes=(note,))
    answer = jsontext.load(clean(output.text))
    if not isinstance(answer, dict):
        note = Note(Severity.WARNING, source, f"NVML's process ended with status {output.exit_status}")
        return Report(source=source, vendor=Vendor.NVIDIA, notes=(note,))
    return from_answer(answer, source)


# -I keeps the working folder and the environment out; the caller's own module path is what it needs
_BOOT = "import sys; sys.path[:] = {path!r}; from hwdetect.vendors.nvml import main; sys.exit(main())"


def from_answer(answer: dict[str, Any], source: str) -> Report:
    """The JSON of nvml.py as a report."""
    if "error" in answer:
        text = str(answer.get("text"))
        note = Note(Severity.INFO, source, f"NVML is not used: {text}")
        problems: tuple[Problem, ...] = ()
        if "Mismatch" in text or "mismatch" in text:
            problems = nvidia_table.parse("Driver/library version mismatch", source).problems
        elif "Not Loaded" in text:
            problems = nvidia_table.parse("Failed to initialize NVML: Driver Not Loaded", source).problems
        return Report(source=source, vendor=Vendor.NVIDIA, notes=(note,), problems=problems)
    entries = [entry for entry in answer.get("devices") or [] if isinstance(entry, dict)]
    devices = tuple(_from_library(entry, answer, source) for entry in entries)
    lost = tuple(
        Problem(State.LOST, f"GPU {n} does not answer NVML", "sudo dmesg | grep -i xid; then reboot", index=n)
        for n in answer.get("lost") or []
    )
    cuda = answer.get("cuda")
    return Report(
        source=source,
        vendor=Vendor.NVIDIA,
        devices=devices,
        problems=lost,
        driver_version=answer.get("driver"),
        runtime_version=f"CUDA {cuda}" if cuda else None,
        expected_devices=answer.get("count"),
    )


def _from_library(entry: dict[str, Any], answer: dict[str, Any], source: str) -> Accelerator:
    ids = entry.get("pci_device_id")
    draw, limit = entry.get("power_mw"), entry.get("power_limit_mw")
    processes = entry.get("processes")
    cuda = answer.get("cuda")
    minor = entry.get("minor")
    device = Accelerator.of(
        source,
        vendor=Vendor.NVIDIA,
        index=entry.get("index"),
        name=entry.get("name"),
        uuid=entry.get("uuid"),
        pci_address=pci_address(entry.get("bus")),
        pci_id=f"{ids & 0xFFFF:04x}:{ids >> 16:04x}" if isinstance(ids, int) else None,
        nodes=(f"/dev/nvidia{minor}",) if isinstance(minor, int) else None,
        driver_version=answer.get("driver"),
        runtime_version=f"CUDA {cuda}" if cuda else None,
        architecture=entry.get("architecture"),
        compute_capability=entry.get("capability"),
        compute_units=multiprocessors(entry.get("cores"), entry.get("capability")),
        memory_total_bytes=entry.get("total"),
        memory_used_bytes=entry.get("used"),
        memory_free_bytes=entry.get("free"),
        memory_reserved_bytes=entry.get("reserved"),
        utilisation_percent=_real(entry.get("utilisation")),
        temperature_c=_real(entry.get("temperature")),
        power_w=draw / 1000 if isinstance(draw, int) else None,
        power_limit_w=limit / 1000 if isinstance(limit, int) else None,
        ecc_enabled=entry.get("ecc"),
        ecc_uncorrected=entry.get("ecc_uncorrected"),
        partition_mode={True: "MIG", False: "none"}.get(entry.get("mig")),  # type: ignore[arg-type]
        partitions=tuple(_slice(piece) for piece in entry.get("slices") or []) or None,
        processes=tuple(DeviceProcess(p["pid"], p["name"], p["memory"], p["compute"]) for p in processes)
        if processes is not None
        else None,
        pcie_generation=entry.get("generation"),
        pcie_generation_max=entry.get("generation_max"),
        pcie_width=entry.get("width"),
        pcie_width_max=entry.get("width_max"),
        links=_links(entry, answer),
    )
    return checked_memory(device)


def _real(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _slice(piece: dict[str, Any]) -> Partition:
    return Partition(
        index=piece["index"],
        profile=piece.get("profile"),
        uuid=piece.get("uuid"),
        instance=f"GI {piece.get('gi')} CI {piece.get('ci')}",
        memory_total_bytes=piece.get("total"),
        memory_used_bytes=piece.get("used"),
        memory_group=f"GI {piece.get('gi')}",
    )


def _links(entry: dict[str, Any], answer: dict[str, Any]) -> tuple[Link, ...] | None:
    """NVLinks whose far end is another GPU here count as direct; behind a switch the level alone is known."""
    me, lanes = entry.get("index"), entry.get("nvlinks")
    by_address = {pci_address(d.get("bus")): d.get("index") for d in answer.get("devices") or []}
    far = {by_address.get(pci_address(bus)): count for bus, count in (lanes or {}).items()}
    switched = sum(count for index, count in far.items() if index is None)
    found: list[Link] = []
    for pair in answer.get("peers") or []:
        if me not in (pair.get("a"), pair.get("b")):
            continue
        peer = pair["b"] if pair["a"] == me else pair["a"]
        count = far.get(peer) or switched
        if count:
            found.append(Link(peer, LinkKind.NVLINK, f"NV{count}", lanes=count, peer_access=pair.get("read")))
        else:
            kind = _LEVELS.get(pair.get("level"), LinkKind.UNKNOWN)
            found.append(Link(peer, kind, kind.name, peer_access=pair.get("read")))
    if not found and switched:
        return (Link(None, LinkKind.NVLINK, f"NV{switched}", lanes=switched),)
    return tuple(found)


def _run(deadline: float, *arguments: str) -> list[Report]:
    """One call of nvidia-smi within what is left of the vendor's three seconds; none if that is nothing."""
    left = deadline - time.monotonic()
    if left < 0.05:
        return []
    argv = ["nvidia-smi", *arguments]
    source = " ".join(argv[:3]) if not arguments[0].startswith("--query") else f"nvidia-smi {arguments[0]}"
    output = command.run(argv, limit_s=left)
    if output is None:
        note = Note(Severity.INFO, "nvidia-smi", "nvidia-smi is not installed")
        return [Report(source=source, vendor=Vendor.NVIDIA, notes=(note,))]
    if output.timed_out:
        note = Note(Severity.WARNING, "nvidia-smi", "nvidia-smi did not end within 3 s: the driver may hang", "reboot")
        return [Report(source=source, vendor=Vendor.NVIDIA, notes=(note,))]
    text = clean(output.text)
    if output.exit_status == -11:
        text += "\nSegmentation fault"
    if arguments[0] == "-q" and nvidia_xml.looks_like(text):
        report = nvidia_xml.parse(text, source)
    elif arguments[0].startswith("--query"):
        report = nvidia_csv.parse(text, source)
        report = dataclasses.replace(report, source="nvidia-smi --query-gpu", devices=_shorten(report.devices))
    elif arguments[0] == "-L":
        report = nvidia_topo.parse_list(text, source)
    elif arguments[0] == "topo":
        report = nvidia_topo.parse_topology(text, source)
    else:
        report = nvidia_table.parse(text, source)
    if not report.devices:
        report = nvidia_table.parse(text, source)
    return [report]


def _shorten(devices: tuple[Accelerator, ...]) -> tuple[Accelerator, ...]:
    """Name the source without its long list of columns."""
    return tuple(
        dataclasses.replace(device, sources=dict.fromkeys(device.sources, "nvidia-smi --query-gpu"))
        for device in devices
    )


def from_proc(tree: Tree) -> tuple[tuple[Accelerator, ...], dict[int, str]]:
    """What the kernel module shows in /proc, and which NUMA nodes are GPU memory (POWER9, Grace Hopper)."""
    devices: list[Accelerator] = []
    nodes: dict[int, str] = {}
    for name in tree.names(_GPUS):
        address = pci_address(name)
        if address is None:
            continue
        fields = _fields(tree.read(f"{_GPUS}/{name}/information"))
        numa = _fields(tree.read(f"{_GPUS}/{name}/numa_status"))
        minor = fields.get("Device Minor", "")
        uuid = fields.get("GPU UUID", "")
        size = _hexadecimal(numa.get("Size"))
        node = numa.get("Node", "")
        online = numa.get("Status") == "online"
        device = Accelerator.of(
            f"{_GPUS}/*/information",
            vendor=Vendor.NVIDIA,
            pci_address=address,
            name=fields.get("Model"),
            uuid=uuid if uuid.startswith("GPU-") and "?" not in uuid else None,
            nodes=(f"/dev/nvidia{minor}",) if minor.isascii() and minor.isdigit() else None,
            kernel_driver="nvidia",
        )
        if online and size and node.isascii() and node.isdigit() and len(node) < 6:
            nodes[int(node)] = address
            device = device.with_facts(f"{_GPUS}/*/numa_status", memory_total_bytes=size)
        devices.append(device)
    return unique(devices), nodes


def _fields(text: str | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for entry in (text or "").splitlines():
        key, colon, value = entry.partition(":")
        if colon:
            found.setdefault(key.strip(), value.strip())
    return found


def _hexadecimal(text: str | None) -> int | None:
    try:
        return int(text, 16) if text and len(text) < 16 else None
    except ValueError:
        return None
