"""A machine as text for a terminal: plain characters, aligned columns, nothing that is not known."""

from __future__ import annotations

from collections.abc import Iterable

from hwdetect.accelerator import Accelerator
from hwdetect.machine import Machine
from hwdetect.report import link_groups
from hwdetect.text import format_cpu_list

_MIB = 1024 * 1024
_UNKNOWN = "-"


def size(count: int | None) -> str:
    """Bytes in the unit that reads best; a dash if unknown."""
    if count is None:
        return _UNKNOWN
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def table(machine: Machine) -> str:
    """The whole description: host, processor, memory, disks, accelerators, notes."""
    lines = [*_host(machine), "", *_accelerators(machine)]
    if machine.notes:
        lines += ["", "Notes"]
        for note in machine.notes:
            lines.append(f"  {note.severity}: {_clean(note.subject)}: {_clean(note.text)}")
            if note.fix:
                lines.append(f"    fix: {_clean(note.fix)}")
    return "\n".join(lines) + "\n"


def _clean(text: str) -> str:
    """Names come from firmware and tools: nothing in them may move the cursor or break the line."""
    return "".join(char if char.isprintable() else "?" for char in text)


def _host(machine: Machine) -> Iterable[str]:
    host, cpu, memory = machine.host, machine.cpu, machine.memory
    product = " ".join(part for part in (host.vendor, host.product) if part)
    where = [part for part in (host.hypervisor and f"{host.hypervisor} guest", host.wsl and "WSL") if part]
    if host.container not in (None, "none"):
        where.append(f"in {host.container}")
    head = [host.hostname or "this machine", product, host.system, host.kernel, *where]
    yield "Host      " + _clean(", ".join(part for part in head if part))
    counts = [
        f"{cpu.sockets} socket{'s' if cpu.sockets > 1 else ''}" if cpu.sockets else None,
        f"{cpu.physical_cores} cores" if cpu.physical_cores else None,
        f"{cpu.logical_cpus} threads" if cpu.logical_cpus else None,
    ]
    yield f"CPU       {_clean(cpu.model or 'unknown model')}: {', '.join(c for c in counts if c)}"
    usable = f"{cpu.usable_cores} cores, CPUs {format_cpu_list(cpu.usable_cpus)}" if cpu.usable_cpus else "unknown"
    quota = f", time for {cpu.quota_cpus:g} CPUs" if cpu.quota_cpus is not None else ""
    yield f"  usable  {usable}{quota}"
    for kind in cpu.core_kinds:
        clock = f" up to {kind.max_mhz:.0f} MHz" if kind.max_mhz else ""
        yield f"  kind    {_clean(kind.name)}: {kind.cores} cores{clock}"
    if cpu.isa_levels:
        yield f"  sets    {' '.join(cpu.isa_levels)}"
    limit, total = memory.effective_limit_bytes, memory.total_bytes
    limited = f", limited to {size(limit)}" if limit is not None and total is not None and limit < total else ""
    yield f"Memory    {size(total)}{limited}, available {size(memory.available_bytes)}"
    for pages in memory.hugepages:
        if pages.total:
            yield f"  huge    {pages.total} pages of {size(pages.size_bytes)}, {pages.free} free"
    if len(machine.numa) > 1:
        for node in machine.numa:
            role = "accelerator memory" if node.accelerator else f"CPUs {format_cpu_list(node.cpus) or _UNKNOWN}"
            yield f"  node {node.node:<3} {size(node.memory_total_bytes)}, {role}"
    for disk in machine.disks:
        system = disk.filesystem or "unknown file system"
        yield f"Disk      {disk.path}: {size(disk.free_bytes)} free of {size(disk.total_bytes)} ({system})"


def _accelerators(machine: Machine) -> Iterable[str]:
    if not machine.accelerators:
        yield "Accelerators: none found"
        return
    rows: list[tuple[str, ...]] = [("ID", "NAME", "BUS", "MEMORY", "FREE", "STATE", "DRIVER", "CAN")]
    rows += [_row(device) for device in machine.accelerators]
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    for device in machine.accelerators:
        yield from _remarks(device)
    for vendor in dict.fromkeys(device.vendor for device in machine.accelerators):
        for group in link_groups(d for d in machine.accelerators if d.vendor is vendor):
            yield f"  {vendor} {format_cpu_list(group)} are linked directly"


def _row(device: Accelerator) -> tuple[str, ...]:
    can = device.capabilities
    names = [n for n in ("bf16", "fp8", "fp4", "int8", "triton", "graphs") if can is not None and getattr(can, n)]
    memory = size(device.memory_total_bytes) + (" shared" if device.unified else "")
    return (
        f"{device.vendor}:{device.index if device.index is not None else '?'}",
        _clean(device.name or _UNKNOWN),
        device.pci_address or _UNKNOWN,
        memory,
        size(device.available_bytes),
        device.state,
        _clean(device.driver_version or device.kernel_driver or _UNKNOWN),
        " ".join(names) or _UNKNOWN,
    )


def _remarks(device: Accelerator) -> Iterable[str]:
    name = f"{device.vendor}:{device.index}"
    if device.reason:
        yield f"  {name} {device.state}: {_clean(device.reason)}"
    if device.fix:
        yield f"    fix: {_clean(device.fix)}"
    for warning in device.warnings:
        yield f"  {name} warning: {_clean(warning)}"
    for part in device.partitions:
        label = part.profile or part.instance or ""
        yield f"  {name} slice {part.index}: {_clean(label)} {size(part.memory_total_bytes)}"
