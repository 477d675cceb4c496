"""The processors: what they are, what is online, and what this process may use."""

from __future__ import annotations

import dataclasses
import os
import platform

from hwdetect.host import cpuinfo
from hwdetect.host.topology import max_mhz as fastest_mhz
from hwdetect.host.topology import read_caches, read_core_kinds, read_topology, sockets_by_distance
from hwdetect.machine import Cgroup, Cpu
from hwdetect.text import cpu_list
from hwdetect.tree import Tree, line

_CPUS = "/sys/devices/system/cpu"


def read_cpu(tree: Tree, cgroup: Cgroup) -> Cpu:
    text = tree.read("/proc/cpuinfo") or ""
    info = cpuinfo.parse(text)
    cpu = cpuinfo.cpu_from_info(info, "/proc/cpuinfo")
    online = cpu_list(line(tree, f"{_CPUS}/online")) or cpu.online
    present = cpu_list(line(tree, f"{_CPUS}/present"))
    if online and online != cpu.online:
        cpu = cpu.with_facts(f"{_CPUS}/online", online=online, logical_cpus=len(online))
    if present:
        cpu = cpu.with_facts(f"{_CPUS}/present", present_cpus=len(present))
    if tree.is_live:
        cpu = cpu.with_facts("uname", architecture=platform.machine() or None)
    topology = read_topology(tree, online, info)
    if topology.cores:
        sizes = {len(core) for core in topology.cores}
        cores = len(topology.cores)
        even = topology.sockets is not None and cores % topology.sockets == 0
        # Offline CPUs can leave sockets and cores uneven: then there is no such number
        cpu = dataclasses.replace(cpu, cores_per_socket=None, threads_per_core=None)
        cpu = cpu.with_facts(
            topology.source,
            physical_cores=cores,
            sockets=topology.sockets,
            cores_per_socket=cores // topology.sockets if topology.sockets and even else None,
            threads_per_core=sizes.pop() if len(sizes) == 1 else None,
        )
    if cpu.sockets is None:
        cpu = cpu.with_facts("node distances", sockets=sockets_by_distance(tree))
    cpu = cpu.with_facts("topology", core_kinds=read_core_kinds(tree, online, topology, info) or None)
    caches = read_caches(tree, online)
    cpu = cpu.with_facts(
        f"{_CPUS}/cpu*/cache",
        l2_cache_bytes=caches.l2_bytes,
        l3_cache_bytes=caches.l3_bytes,
        l3_caches=caches.l3_count,
    )
    cpu = cpu.with_facts(f"{_CPUS}/cpufreq", max_mhz=fastest_mhz(tree, online))
    return _usable(tree, cpu, cgroup, topology.cores)


def _usable(tree: Tree, cpu: Cpu, cgroup: Cgroup, cores: tuple[tuple[int, ...], ...]) -> Cpu:
    usable = set(cpu.online or cgroup.cpuset_cpus or ())
    source = cpu.sources.get("online", "/proc/cpuinfo")
    if cgroup.cpuset_cpus is not None and usable.intersection(cgroup.cpuset_cpus) != usable:
        usable &= set(cgroup.cpuset_cpus)
        source = cgroup.sources["cpuset_cpus"]
    affinity = _affinity(tree)
    if affinity is not None and usable.intersection(affinity[0]) != usable:
        usable &= set(affinity[0])
        source = affinity[1]
    if not usable:
        return cpu
    cpu = cpu.with_facts(source, usable_cpus=tuple(sorted(usable)))
    if cores:
        touched = sum(1 for core in cores if usable.intersection(core))
        cpu = cpu.with_facts(source, usable_physical_cores=touched)
    return cpu.with_facts(cgroup.sources.get("cpu_quota_cpus", "cgroup"), quota_cpus=cgroup.cpu_quota_cpus)


def _affinity(tree: Tree) -> tuple[tuple[int, ...], str] | None:
    if tree.is_live:
        return tuple(sorted(os.sched_getaffinity(0))), "sched_getaffinity"
    for entry in (tree.read("/proc/self/status") or "").splitlines():
        if entry.startswith("Cpus_allowed_list:"):
            ids = cpu_list(entry.partition(":")[2])
            return (ids, "/proc/self/status") if ids else None
    return None
