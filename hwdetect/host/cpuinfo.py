"""/proc/cpuinfo in the form each architecture gives it: x86, Arm, POWER, RISC-V, s390, LoongArch."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from hwdetect.host.arm import implementer_name, part_name
from hwdetect.host.isa import isa_levels
from hwdetect.machine import Cpu
from hwdetect.text import number

_S390_LINE = re.compile(r"^processor\s+(\d{1,6})\s*:")


@dataclass
class CpuInfo:
    """What the file says. `processors` maps a CPU's number to its own lines; `common` are lines of no CPU."""

    processors: dict[int, dict[str, str]] = field(default_factory=dict)
    common: dict[str, str] = field(default_factory=dict)

    def first(self, *names: str) -> str | None:
        """The first value of any of `names`, those of a CPU before the common ones."""
        for block in [*self.processors.values(), self.common]:
            for name in names:
                if block.get(name):
                    return block[name]
        return None

    def values(self, name: str) -> list[str]:
        return [block[name] for block in self.processors.values() if block.get(name)]


def parse(text: str) -> CpuInfo:
    info = CpuInfo()
    block = info.common
    for entry in text.splitlines():
        s390 = _S390_LINE.match(entry)
        if s390:
            info.processors.setdefault(int(s390.group(1)), {})["identification"] = entry.partition(":")[2].strip()
            continue
        head, colon, tail = entry.partition(":")
        key, value = head.strip(), tail.strip()
        if not colon:
            if not entry.strip():
                block = info.common
            continue
        if key in ("processor", "cpu number") and value.isascii() and value.isdigit() and len(value) < 7:
            block = info.processors.setdefault(int(value), {})
            continue
        block.setdefault(key, value)
    return info


def cpu_from_info(info: CpuInfo, source: str) -> Cpu:
    """Facts that this file alone supports: what it does not say stays unknown."""
    count = len(info.processors) or _declared(info)
    cores, sockets = _cores(info)
    online = tuple(sorted(info.processors))
    per_core = {len(cpus) for cpus in core_groups(info).values()}
    return Cpu.of(
        source,
        model=_model(info),
        vendor=info.first("vendor_id") or implementer_name(info.first("CPU implementer")),
        architecture=_architecture(info),
        sockets=sockets,
        physical_cores=cores,
        cores_per_socket=cores // sockets if cores and sockets and cores % sockets == 0 else None,
        threads_per_core=per_core.pop() if len(per_core) == 1 else None,
        logical_cpus=count,
        online=online or None,
        isa_levels=isa_levels(frozenset((info.first("flags", "Features", "features") or "").split())) or None,
        max_mhz=number(info.first("clock", "cpu MHz static")),
    )


def core_groups(info: CpuInfo) -> dict[tuple[str, str], tuple[int, ...]]:
    """CPUs by (physical id, core id), where the file gives both for every CPU."""
    groups: dict[tuple[str, str], tuple[int, ...]] = {}
    for cpu, block in info.processors.items():
        if "core id" not in block:
            return {}
        alone = block.get("siblings") is not None and block.get("siblings") == block.get("cpu cores")
        # Without threads each CPU is a core, even where dies of one package number their cores alike
        key = (block.get("physical id", "0"), f"cpu {cpu}" if alone else block["core id"])
        groups[key] = (*groups.get(key, ()), cpu)
    return groups


def _declared(info: CpuInfo) -> int | None:
    value = info.common.get("# processors")
    return int(value) if value and value.isascii() and value.isdigit() and len(value) < 7 else None


def _cores(info: CpuInfo) -> tuple[int | None, int | None]:
    groups = core_groups(info)
    packages = {block["physical id"] for block in info.processors.values() if "physical id" in block}
    return len(groups) or None, len(packages) or None


def _model(info: CpuInfo) -> str | None:
    named = info.first("model name", "Model Name", "Processor", "cpu model")
    if named:
        return named
    arm = {part_name(b.get("CPU implementer"), b.get("CPU part")): None for b in info.processors.values()}
    names = [name for name in arm if name]
    if names:
        return " + ".join(names)
    cpu = info.first("cpu")
    if cpu:
        return cpu
    machine = re.search(r"machine\s*=\s*(\w+)", info.first("identification") or "")
    if machine:
        return f"{info.first('vendor_id') or 'IBM/S390'} machine {machine.group(1)}"
    return info.first("uarch", "isa")


def _architecture(info: CpuInfo) -> str | None:
    if info.first("CPU architecture"):
        level = info.first("CPU architecture") or ""
        return "aarch64" if level.startswith(("8", "9", "AArch64")) else f"armv{level}"
    isa = info.first("isa") or ""
    if isa.startswith("rv"):
        return f"riscv{isa[2:4]}"
    if "S390" in (info.first("vendor_id") or ""):
        return "s390x"
    if "POWER" in (info.first("cpu") or "").upper() or info.common.get("platform") in ("pSeries", "PowerNV"):
        return "ppc64"
    if "Loongson" in (info.first("CPU Family", "Model Name") or ""):
        return "loongarch64"
    if "mips" in isa:
        return "mips"
    flags = (info.first("flags") or "").split()
    if flags:
        return "x86_64" if "lm" in flags else "i686"
    return None
