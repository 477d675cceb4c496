"""Cores, sockets, caches and kinds of cores from /sys, counted over online CPUs only."""

from __future__ import annotations

from dataclasses import dataclass

from hwdetect.host.arm import part_name
from hwdetect.host.cpuinfo import CpuInfo, core_groups
from hwdetect.machine import CoreKind
from hwdetect.text import cpu_list, size_bytes
from hwdetect.tree import Tree, line, numbered

_CPUS = "/sys/devices/system/cpu"


@dataclass(frozen=True, slots=True)
class Topology:
    """`cores` are sets of CPUs that share one core; empty where the tree does not say."""

    cores: tuple[tuple[int, ...], ...]
    sockets: int | None
    source: str


@dataclass(frozen=True, slots=True)
class Caches:
    l2_bytes: int | None = None
    l3_bytes: int | None = None
    l3_count: int | None = None


def read_topology(tree: Tree, online: tuple[int, ...], info: CpuInfo) -> Topology:
    cores: dict[tuple[int, ...], None] = {}
    packages: set[str] = set()
    here = set(online)
    for cpu in online:
        folder = f"{_CPUS}/cpu{cpu}/topology"
        siblings = cpu_list(line(tree, f"{folder}/core_cpus_list") or line(tree, f"{folder}/thread_siblings_list"))
        if siblings is None:
            break
        package = line(tree, f"{folder}/physical_package_id")
        if package is not None and not package.startswith("-"):
            packages.add(package)
        cores[tuple(sorted(here.intersection(siblings) | {cpu}))] = None
    else:
        if cores:
            return Topology(tuple(cores), len(packages) or None, f"{_CPUS}/cpu*/topology")
    groups = core_groups(info)
    kept = [tuple(cpu for cpu in cpus if cpu in here) for cpus in groups.values()]
    sockets = len({package for package, _ in groups}) or None
    return Topology(tuple(cpus for cpus in kept if cpus), sockets, "/proc/cpuinfo")


def sockets_by_distance(tree: Tree) -> int | None:
    """Packages as the firmware's distances tell them: nodes at 16 or less share one, at 20 or more they do not.

    None where a distance lies between, or no two nodes are near: then the table says nothing about packages.
    """
    rows: dict[int, list[int]] = {}
    for node, folder in numbered(tree, "/sys/devices/system/node", "node"):
        words = (tree.read(f"{folder}/distance") or "").split()
        rows[node] = [int(word) for word in words if word.isascii() and word.isdigit() and len(word) < 6]
    if len(rows) < 2 or any(len(row) != len(rows) for row in rows.values()):
        return None
    if any(16 < distance < 20 for row in rows.values() for distance in row):
        return None
    groups = [tuple(distance <= 16 for distance in row) for row in rows.values()]
    # Near must mean the same from every node of a group, else the distances describe a ring or a cube of packages
    if any(near and groups[other] != group for group in groups for other, near in enumerate(group)):
        return None
    return len(set(groups)) if len(set(groups)) < len(rows) else None


def read_caches(tree: Tree, online: tuple[int, ...]) -> Caches:
    """Sizes per instance of the largest L2 and L3, and how many L3 instances the online CPUs share."""
    sizes: dict[int, int] = {}
    shared: set[tuple[int, ...]] = set()
    covered: set[int] = set()
    for cpu in online:
        if cpu in covered:
            continue
        folder = f"{_CPUS}/cpu{cpu}/cache"
        has_l3 = False
        for index in tree.names(folder):
            level = line(tree, f"{folder}/{index}/level")
            if level not in ("2", "3") or line(tree, f"{folder}/{index}/type") == "Instruction":
                continue
            size = size_bytes(line(tree, f"{folder}/{index}/size"))
            if size:
                sizes[int(level)] = max(size, sizes.get(int(level), 0))
            users = cpu_list(line(tree, f"{folder}/{index}/shared_cpu_list"))
            if level == "3" and users:
                has_l3 = True
                shared.add(users)
                covered.update(users)
        if not has_l3 and cpu > online[0] + 64:
            break  # hundreds of CPUs without L3: the first ones have said it
    return Caches(sizes.get(2), sizes.get(3), len(shared) or None)


def read_core_kinds(tree: Tree, online: tuple[int, ...], topology: Topology, info: CpuInfo) -> tuple[CoreKind, ...]:
    """Kinds of cores where there is more than one, the fastest first; () on a machine of equal cores."""
    kinds = _by_perf_unit(tree, online) or _by_arm_part(info, online) or _by_shape(tree, topology)
    if len(kinds) < 2:
        return ()
    described: list[CoreKind] = []
    for name, cpus in kinds.items():
        members = set(cpus)
        cores = sum(1 for core in topology.cores if members.issuperset(core)) or len(cpus)
        described.append(CoreKind(name, cores, cpus, _fastest_mhz(tree, cpus)))
    ordered = sorted(described, key=lambda kind: kind.max_mhz or 0.0, reverse=True)
    if {kind.name for kind in ordered} == {"0", "1"}:
        ordered = [
            CoreKind(name, k.cores, k.cpus, k.max_mhz)
            for name, k in zip(("performance", "efficiency"), ordered, strict=True)
        ]
    return tuple(ordered)


def _by_perf_unit(tree: Tree, online: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for name, unit in (("performance", "cpu_core"), ("efficiency", "cpu_atom"), ("low-power", "cpu_lowpower")):
        cpus = cpu_list(line(tree, f"/sys/devices/{unit}/cpus"))
        members = tuple(cpu for cpu in cpus or () if cpu in online)
        if members:
            found[name] = members
    return found


def _by_arm_part(info: CpuInfo, online: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for cpu, block in info.processors.items():
        part = block.get("CPU part")
        if part and cpu in online:
            name = part_name(block.get("CPU implementer"), part) or f"part {part}"
            found[name] = (*found.get(name, ()), cpu)
    return found


def _by_shape(tree: Tree, topology: Topology) -> dict[str, tuple[int, ...]]:
    """Two groups that differ both in base clock and in threads per core or cores per cluster.

    One difference alone proves nothing: siblings can be offline, and servers give equal cores unequal clocks.
    """
    groups: dict[tuple[int, int, str], list[int]] = {}
    for core in topology.cores:
        cluster = cpu_list(line(tree, f"{_CPUS}/cpu{core[0]}/topology/cluster_cpus_list")) or core
        base = line(tree, f"{_CPUS}/cpufreq/policy{core[0]}/base_frequency")
        if base is None:
            return {}
        groups.setdefault((len(core), len(cluster) // len(core), base), []).extend(core)
    shapes = {key[:2] for key in groups}
    if len(groups) != 2 or len(shapes) != 2 or len({key[2] for key in groups}) != 2:
        return {}
    return {str(n): tuple(sorted(cpus)) for n, cpus in enumerate(groups.values())}


def _fastest_mhz(tree: Tree, cpus: tuple[int, ...]) -> float | None:
    best: int | None = None
    for cpu in cpus:
        text = line(tree, f"{_CPUS}/cpufreq/policy{cpu}/cpuinfo_max_freq") or line(
            tree, f"{_CPUS}/cpu{cpu}/cpufreq/cpuinfo_max_freq"
        )
        if text and text.isascii() and text.isdigit() and len(text) < 12:
            best = max(best or 0, int(text))
    return best / 1000 if best else None


def max_mhz(tree: Tree, online: tuple[int, ...]) -> float | None:
    """Highest clock of the first and last CPU: kinds of cores are looked at one by one elsewhere."""
    return _fastest_mhz(tree, tuple({online[0], online[-1]})) if online else None
