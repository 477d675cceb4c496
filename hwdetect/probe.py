"""Find the accelerators: the bus says what is present, nodes and drivers what is usable, vendors' tools the rest."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from hwdetect import capture, command, pci
from hwdetect.accelerator import Accelerator, State, Vendor
from hwdetect.access import judge, present_by_node
from hwdetect.finish import finish, with_problems
from hwdetect.machine import Host, Memory, Note, Severity
from hwdetect.report import Report, merged
from hwdetect.text import clean
from hwdetect.tree import Tree
from hwdetect.vendors import amd_sysfs, jetson, nvidia
from hwdetect.vendors.toolbox import KITS


def memory_nodes(tree: Tree) -> dict[int, str]:
    """NUMA nodes that are an accelerator's memory, with its address."""
    return nvidia.from_proc(tree)[1]


def find_accelerators(tree: Tree, host: Host, memory: Memory) -> tuple[tuple[Accelerator, ...], tuple[Note, ...]]:
    """Blocks: up to the tools' limit of 3 s, all vendors at once. Only a live tree is asked with tools."""
    functions = pci.scan(tree)
    on_bus = [device for function in functions if (device := pci.accelerator(function)) is not None]
    by_node = present_by_node(tree)
    tegra = jetson.from_tree(tree)
    vendors = {device.vendor for device in on_bus} | set(by_node)
    if tegra is not None or (tree.is_live and (tree.exists("/dev/dxg") or tree.exists("/proc/driver/nvidia/version"))):
        vendors.add(Vendor.NVIDIA)
    reports = _ask(vendors, with_jetson=tegra is not None) if tree.is_live else {}
    found: list[Accelerator] = []
    notes: list[Note] = []
    in_container = host.container not in (None, "none")
    for vendor in sorted(vendors):
        present = tuple(device for device in on_bus if device.vendor is vendor)
        answers = reports.get(vendor, [])
        devices, asked = _combine(tree, vendor, present, answers, tegra if vendor is Vendor.NVIDIA else None)
        devices = tuple(judge(tree, device, in_container, asked) for device in devices)
        found += finish(devices, usable=asked)
        notes += _notes(answers, asked)
        if not devices and vendor in by_node and not present:
            shown = ", ".join(by_node[vendor][:4])
            notes.append(Note(Severity.WARNING, vendor, f"nodes {shown} exist and no tool describes them"))
    return tuple(_with_host_memory(_indexed(found), memory)), tuple(notes)


def _combine(
    tree: Tree, vendor: Vendor, present: tuple[Accelerator, ...], answers: list[Report], tegra: Accelerator | None
) -> tuple[tuple[Accelerator, ...], bool]:
    """All that is known of one vendor's devices, and whether a tool or library listed any."""
    devices: tuple[Accelerator, ...] = ()
    for report in answers:
        devices = merged(devices, report.devices)
    asked = bool(devices)
    if asked and vendor is Vendor.NVIDIA and tegra is not None and len(devices) == 1:
        devices = (devices[0].filled_from(tegra),)
    elif tegra is not None and not devices:
        devices, asked = (tegra,), True  # the device tree names it and nothing else on a Jetson can
    listed = len(devices)
    devices = merged(devices, present)
    if asked and any(device.pci_address is None for device in devices[:listed]):
        # A tool that prints no addresses lists the devices in the bus' own order, if it lists all of them
        devices = _paired(devices[:listed], present) or devices[:listed]
    if vendor is Vendor.NVIDIA:
        devices = merged(devices, nvidia.from_proc(tree)[0])
    if vendor in (Vendor.AMD, Vendor.HYGON):
        for more in (amd_sysfs.from_drm(tree, vendor), amd_sysfs.from_kfd(tree, vendor)):
            devices = _only_known(devices, more)
        version = amd_sysfs.driver_version(tree)
        if version:
            devices = tuple(
                d if d.driver_version else d.with_facts(version[1], driver_version=version[0]) for d in devices
            )
        asked = asked or any(device.memory_total_bytes is not None for device in devices)
    for report in answers:
        devices = with_problems(devices, report.problems, vendor)
    missing = asked and vendor is not Vendor.AMD
    if missing:
        devices = tuple(
            _unlisted(d) if n >= listed and d.memory_total_bytes is None else d for n, d in enumerate(devices)
        )
    return devices, asked


def _only_known(devices: tuple[Accelerator, ...], more: tuple[Accelerator, ...]) -> tuple[Accelerator, ...]:
    addresses = {device.pci_address for device in devices}
    return merged(devices, tuple(device for device in more if device.pci_address in addresses))


def _paired(listed: tuple[Accelerator, ...], present: tuple[Accelerator, ...]) -> tuple[Accelerator, ...]:
    if len(listed) != len(present) or any(device.pci_address for device in listed):
        return ()
    return tuple(device.filled_from(other) for device, other in zip(listed, present, strict=True))


def _unlisted(device: Accelerator) -> Accelerator:
    if device.state is not State.UNKNOWN or device.kernel_driver in ("vfio-pci", "nouveau"):
        return device
    return device.with_facts(
        "the vendor's tool",
        state=State.LOST,
        reason="it is on the bus, but the driver does not list it",
        fix="look into the kernel log (sudo dmesg | tail -100), then reboot",
    )


def _indexed(devices: list[Accelerator]) -> list[Accelerator]:
    """Devices without a number get the next one of their vendor, in the order of the bus."""
    taken: dict[Vendor, set[int]] = {}
    for device in devices:
        if device.index is not None:
            taken.setdefault(device.vendor, set()).add(device.index)
    numbered: list[Accelerator] = []
    for device in devices:
        if device.index is None:
            used = taken.setdefault(device.vendor, set())
            index = next(n for n in range(len(used) + 1) if n not in used)
            used.add(index)
            device = device.with_facts("order on the bus", index=index)
        numbered.append(device)
    return numbered


def _with_host_memory(devices: list[Accelerator], memory: Memory) -> list[Accelerator]:
    """Unified memory is the host's: counted there, and repeated here only as what the device can address."""
    filled: list[Accelerator] = []
    for device in devices:
        if device.unified and device.memory_total_bytes is None and memory.total_bytes is not None:
            device = device.with_facts(
                "host memory (unified)",
                memory_total_bytes=memory.effective_limit_bytes,
                memory_free_bytes=memory.available_bytes,
            )
        filled.append(device)
    return filled


def _ask(vendors: set[Vendor], with_jetson: bool) -> dict[Vendor, list[Report]]:
    """Every vendor's reports, gathered side by side so that one that hangs costs the others nothing."""
    jobs: list[tuple[Vendor, Callable[[], list[Report]]]] = []
    for vendor in sorted(vendors):
        if vendor is Vendor.NVIDIA:
            jobs.append((vendor, nvidia.probe))
        jobs += [(vendor, _tool(vendor, argv)) for argv in KITS[vendor].commands]
    if with_jetson:
        jobs.append((Vendor.NVIDIA, _tool(Vendor.NVIDIA, ("tegrastats", "--interval", "500"))))
    if not jobs:
        return {}
    answers: dict[Vendor, list[Report]] = {}
    with ThreadPoolExecutor(max_workers=len(jobs), thread_name_prefix="hwdetect") as pool:
        for (vendor, _), future in [(job, pool.submit(job[1])) for job in jobs]:
            answers.setdefault(vendor, []).extend(future.result())
    return answers


def _tool(vendor: Vendor, argv: tuple[str, ...]) -> Callable[[], list[Report]]:
    def ask() -> list[Report]:
        source = " ".join(argv)
        # tegrastats prints until it is stopped: a second gives it time for one line
        output = command.run(argv, limit_s=1.0 if argv[0] == "tegrastats" else command.LIMIT_S)
        if output is None:
            return []
        if output.timed_out and argv[0] != "tegrastats":
            note = Note(Severity.WARNING, argv[0], f"`{source}` did not end within 3 s", f"run it by hand: {source}")
            return [Report(source=source, vendor=vendor, notes=(note,))]
        report = capture.read(clean(output.text), source)
        # Two vendors call their tool xpu-smi: an answer about the other one's devices is not this one's
        return [report] if report.vendor in (vendor, None) else []

    return ask


def _notes(answers: list[Report], asked: bool) -> list[Note]:
    """Every source's notes; where one source answered, those of others that could not are only information."""
    found: list[Note] = []
    for report in answers:
        for note in report.notes:
            lower = asked and not report.devices and note.severity is Severity.WARNING
            found.append(dataclasses.replace(note, severity=Severity.INFO) if lower else note)
    return list(dict.fromkeys(found))
