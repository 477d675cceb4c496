"""Read one saved output of a tool, or a copied file, whatever wrote it: for support cases and tests."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass

from hwdetect import pci
from hwdetect.accelerator import Vendor
from hwdetect.finish import finish
from hwdetect.host import cgroup, cpuinfo, lscpu, memory
from hwdetect.machine import Cgroup, Memory, Note, Severity
from hwdetect.report import Parser, Report, unreadable
from hwdetect.text import clean, cpu_list
from hwdetect.tree import BundleTree, is_bundle
from hwdetect.vendors import (
    amd,
    amd_json,
    amd_smi,
    ascend,
    boxed,
    enflame,
    gpustack,
    hygon,
    intel,
    jetson,
    mthreads,
    nvidia_csv,
    nvidia_table,
    nvidia_text,
    nvidia_topo,
    nvidia_xml,
    others,
)


@dataclass(frozen=True, slots=True)
class Dialect:
    """One form of output: how to know it, and how to read it. `tools` name commands that print it."""

    name: str
    matches: Callable[[str], bool]
    parse: Parser
    tools: tuple[str, ...] = ()
    shows_use: bool = True  # False: it lists what is on the bus, which says nothing about drivers


def parse_capture(raw: str | bytes, tool: str = "") -> Report:
    """What a saved text says. `tool` is the command that printed it, if known; its columns and name are used.

    Never raises on text: what cannot be read is a note in the report.
    """
    text = clean(raw)
    report, shows_use = _read(text, tool)
    return dataclasses.replace(report, devices=finish(report.devices, usable=shows_use))


def read(text: str, tool: str) -> Report:
    """The same for cleaned text, without states and capabilities: those come when all sources are merged."""
    return _read(text, tool)[0]


def _read(text: str, tool: str) -> tuple[Report, bool]:
    source = tool or "capture"
    partial: Report | None = None
    for dialect in _candidates(text, tool):
        report = dialect.parse(text, source)
        if report.devices or report.problems or (not report.said_nothing and report.vendor is None):
            return report, dialect.shows_use
        partial = partial or (None if report.said_nothing else report)
    return partial or unreadable(source, _vendor_of_tool(tool), text), True


def _candidates(text: str, tool: str) -> list[Dialect]:
    """Dialects that the text looks like, those that the command prints before the others."""
    matching = [dialect for dialect in DIALECTS if dialect.matches(text)]
    command = tool.strip().split(" ")[0]
    hinted = [dialect for dialect in DIALECTS if command and command in dialect.tools]
    first = [dialect for dialect in matching if dialect in hinted]
    return [*first, *(d for d in matching if d not in first), *(d for d in hinted if d not in matching)]


_TOOL_VENDORS = {
    "nvidia-smi": Vendor.NVIDIA, "rocm-smi": Vendor.AMD, "amd-smi": Vendor.AMD, "npu-smi": Vendor.ASCEND,
    "mthreads-gmi": Vendor.MTHREADS, "hy-smi": Vendor.HYGON, "cnmon": Vendor.CAMBRICON, "ixsmi": Vendor.ILUVATAR,
    "mx-smi": Vendor.METAX, "ht-smi": Vendor.METAX, "efsmi": Vendor.ENFLAME, "hl-smi": Vendor.GAUDI,
    "ppu-smi": Vendor.THEAD, "brsmi": Vendor.BIREN, "tegrastats": Vendor.NVIDIA,
}  # fmt: skip


def _vendor_of_tool(tool: str) -> Vendor | None:
    return _TOOL_VENDORS.get(tool.strip().split(" ")[0])


def _boxed(dialect: boxed.Dialect) -> Parser:
    return lambda text, source: boxed.parse(text, source, dialect)


def _csv(vendor: Vendor) -> Parser:
    return lambda text, source: nvidia_csv.parse(text, source, vendor)


def _says(*marks: str) -> Callable[[str], bool]:
    return lambda text: any(mark in text for mark in marks)


def _parse_lscpu(text: str, source: str) -> Report:
    cpu, numa = lscpu.parse(text, source)
    return Report(source=source, cpu=cpu if cpu.logical_cpus else None, numa=numa)


def _parse_cpuinfo(text: str, source: str) -> Report:
    cpu = cpuinfo.cpu_from_info(cpuinfo.parse(text), source)
    return Report(source=source, cpu=cpu if cpu.logical_cpus else None)


def _parse_meminfo(text: str, source: str) -> Report:
    found = memory.memory_from_meminfo(text, source)
    return Report(source=source, memory=found if found.total_bytes is not None else None)


def _parse_limit(text: str, source: str) -> Report:
    words = text.split()
    if "cpuset" in source:
        ids = cpu_list(text)
        key = "cpuset_mems" if "mems" in source else "cpuset_cpus"
        return Report(source=source, cgroup=Cgroup.of(source, **{key: ids}) if ids else None)
    if "cpu." in source and len(words) == 1:
        note = Note(Severity.INFO, source, "a CPU quota or period alone: the limit is one divided by the other")
        return Report(source=source, notes=(note,), cgroup=Cgroup(), understood=True)
    if len(words) == 2:
        quota, period = cgroup.limit_bytes(words[0]), cgroup.limit_bytes(words[1])
        return Report(
            source=source, cgroup=Cgroup.of(source, cpu_quota_cpus=quota / period if quota and period else None)
        )
    limit = cgroup.limit_bytes(text)
    group = Cgroup.of(source, memory_limit_bytes=limit)
    return Report(source=source, cgroup=group, memory=Memory.of(source, cgroup_limit_bytes=limit))


def _parse_bundle(text: str, source: str) -> Report:
    from hwdetect.detect import detect_tree  # a bundle is a whole machine: detection itself reads it

    machine = detect_tree(BundleTree(text))
    return Report(
        source=source,
        devices=machine.accelerators,
        notes=machine.notes,
        host=machine.host,
        cpu=machine.cpu,
        memory=machine.memory,
        numa=machine.numa,
        cgroup=machine.cgroup,
    )


def _matches_cpuinfo(text: str) -> bool:
    return bool(re.search(r"^(?:processor\s*\d*\s*:|cpu number\s*:|# processors)", text, re.MULTILINE))


def _matches_table(text: str) -> bool:
    """A list of GPUs may come with messages of the table's kind: it is read as a list."""
    return nvidia_table.looks_like(text) and ("NVIDIA-SMI" in text or not nvidia_topo.looks_like_list(text))


def _matches_boxed(text: str) -> bool:
    return bool(re.search(r"^\s*\|\s*\d+ .*\|", text, re.MULTILINE))


DIALECTS: tuple[Dialect, ...] = (
    Dialect("bundle", is_bundle, _parse_bundle, shows_use=False),
    Dialect("gpustack", gpustack.looks_like, gpustack.parse),
    Dialect("nvidia xml", nvidia_xml.looks_like, nvidia_xml.parse),
    Dialect("nvidia text", nvidia_text.looks_like, nvidia_text.parse),
    Dialect("jetson", jetson.looks_like, jetson.parse, ("tegrastats",)),
    Dialect("hygon", hygon.looks_like, hygon.parse, ("hy-smi",)),
    Dialect("ascend", ascend.looks_like, ascend.parse, ("npu-smi",)),
    Dialect("mthreads", mthreads.looks_like, mthreads.parse, ("mthreads-gmi",)),
    Dialect("enflame", enflame.looks_like, enflame.parse, ("efsmi",)),
    Dialect("gaudi", _says("HL-SMI", "Uncor-Events"), _boxed(boxed.GAUDI), ("hl-smi",)),
    Dialect("kunlun", _says("| XPU-SMI ", "XPU-RT Version", "| XPU  Name"), _boxed(boxed.KUNLUN)),
    Dialect("intel", intel.looks_like, intel.parse, ("xpu-smi",)),
    Dialect("iluvatar", _says("IX-ML:", "Iluvatar"), _boxed(boxed.ILUVATAR), ("ixsmi",)),
    Dialect("iluvatar details", _says("IX-ML", "Iluvatar"), others.parse_iluvatar_details, ("ixsmi",)),
    # One maker sells these cards as "Mars" with the tool renamed
    Dialect("metax", _says("MX-SMI", "MetaX", "HT-SMI"), _boxed(boxed.METAX), ("mx-smi", "ht-smi")),
    Dialect("metax list", _says("GPU#"), others.parse_metax_list, ("mx-smi", "ht-smi")),
    Dialect("metax topology", _says("MetaX System", "MetaXLink"), others.parse_metax_topology, ("mx-smi",)),
    Dialect("cambricon", _says("CNMON", "MLU"), _boxed(boxed.CAMBRICON), ("cnmon",)),
    Dialect("amd json", amd_json.looks_like, amd_json.parse, ("rocm-smi", "amd-smi")),
    Dialect("amd-smi", amd_smi.looks_like, amd_smi.parse, ("amd-smi",)),
    Dialect("amd", amd.looks_like, amd.parse, ("rocm-smi", "amd-smi")),
    Dialect("nvidia table", _matches_table, nvidia_table.parse, ("nvidia-smi",)),
    Dialect("nvidia list", nvidia_topo.looks_like_list, nvidia_topo.parse_list, ("nvidia-smi",)),
    Dialect("nvidia topology", nvidia_topo.looks_like_topology, nvidia_topo.parse_topology, ("nvidia-smi",)),
    Dialect("nvidia csv", nvidia_csv.looks_like, _csv(Vendor.NVIDIA), ("nvidia-smi",)),
    # The same form from other tools: only the command's name tells them apart
    Dialect("ppu csv", nvidia_csv.looks_like, _csv(Vendor.THEAD), ("ppu-smi",)),
    Dialect("biren csv", nvidia_csv.looks_like, _csv(Vendor.BIREN), ("brsmi",)),
    Dialect("iluvatar csv", nvidia_csv.looks_like, _csv(Vendor.ILUVATAR), ("ixsmi",)),
    Dialect("gaudi csv", nvidia_csv.looks_like, others.parse_gaudi_query, ("hl-smi",)),
    Dialect("lspci", pci.looks_like, pci.parse, ("lspci",), shows_use=False),
    Dialect("lscpu", lscpu.looks_like, _parse_lscpu, ("lscpu",)),
    Dialect("cpuinfo", _matches_cpuinfo, _parse_cpuinfo, ("/proc/cpuinfo",)),
    Dialect("meminfo", _says("MemTotal:"), _parse_meminfo, ("/proc/meminfo",)),
    Dialect("limit", lambda text: bool(re.fullmatch(r"\s*(?:max|\d{1,20})(?: \d{1,9})?\s*", text)), _parse_limit),
    Dialect("cpu set", lambda text: False, _parse_limit, ("cat",)),
    Dialect("nvidia rows", _matches_boxed, nvidia_table.parse, ("nvidia-smi",)),
)
