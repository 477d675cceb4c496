"""Host memory, NUMA nodes and hugepages. Memory of devices that the kernel counts as host nodes is kept apart."""

from __future__ import annotations

import resource

from hwdetect.host.cgroup import available_bytes
from hwdetect.machine import Cgroup, HugePages, Memory, NumaNode
from hwdetect.text import cpu_list, cpu_mask, size_bytes
from hwdetect.tree import Tree, line, numbered

_NODES = "/sys/devices/system/node"


def parse_meminfo(text: str) -> dict[str, int]:
    """Every `Key: number kB` line in bytes; the `Node N` prefix of a node's own file is dropped."""
    found: dict[str, int] = {}
    for entry in text.splitlines():
        head, colon, tail = entry.partition(":")
        words = head.split()
        fields = tail.split()
        if colon and words and fields and fields[0].isascii() and fields[0].isdigit() and len(fields[0]) < 20:
            scale = 1024 if len(fields) > 1 and fields[1].lower() == "kb" else 1
            found.setdefault(words[-1], int(fields[0]) * scale)
    return found


def memory_from_meminfo(text: str, source: str) -> Memory:
    values = parse_meminfo(text)
    return Memory.of(
        source,
        total_bytes=values.get("MemTotal"),
        free_bytes=values.get("MemFree"),
        kernel_available_bytes=_available(values),
        swap_total_bytes=values.get("SwapTotal"),
        swap_free_bytes=values.get("SwapFree"),
    )


def _available(values: dict[str, int]) -> int | None:
    if "MemAvailable" in values:
        return values["MemAvailable"]
    # Kernels before 3.14 do not print it: free pages plus the page cache is their nearest figure
    if "MemFree" in values and "Cached" in values:
        return values["MemFree"] + values["Cached"] + values.get("Buffers", 0) - values.get("Shmem", 0)
    return None


def read_numa(tree: Tree, device_nodes: dict[int, str], allowed: tuple[int, ...] | None) -> tuple[NumaNode, ...]:
    """Online nodes. `device_nodes` are those that are an accelerator's memory, with its PCI address."""
    online = cpu_list(tree.read(f"{_NODES}/online"))
    nodes: list[NumaNode] = []
    for number, folder in numbered(tree, _NODES, "node"):
        if online is not None and number not in online:
            continue
        values = parse_meminfo(tree.read(f"{folder}/meminfo") or "")
        distances = (tree.read(f"{folder}/distance") or "").split()
        cpus = cpu_list(tree.read(f"{folder}/cpulist")) or cpu_mask(tree.read(f"{folder}/cpumap"))
        facts = NumaNode.of(
            folder,
            node=number,
            cpus=cpus,
            memory_total_bytes=values.get("MemTotal"),
            memory_free_bytes=values.get("MemFree"),
            distances=tuple(int(d) for d in distances if d.isascii() and d.isdigit() and len(d) < 6) or None,
        )
        if number in device_nodes:
            facts = facts.with_facts("/proc/driver/nvidia/gpus", accelerator=device_nodes[number])
        if allowed is not None:
            facts = facts.with_facts("cgroup", usable=number in allowed)
        nodes.append(facts)
    return tuple(nodes)


def read_memory(tree: Tree, numa: tuple[NumaNode, ...], cgroup: Cgroup, setting_bytes: int | None) -> Memory:
    """Totals of the host alone, what is available now, and every limit that applies to this process."""
    memory = memory_from_meminfo(tree.read("/proc/meminfo") or "", "/proc/meminfo")
    memory = _without_device_nodes(memory, numa)
    limits = Memory.of(
        cgroup.sources.get("memory_limit_bytes", "cgroup"),
        cgroup_limit_bytes=cgroup.memory_limit_bytes,
        cgroup_available_bytes=available_bytes(cgroup),
    )
    memory = memory.filled_from(limits)
    if cgroup.cpuset_mems is not None:
        own = [node for node in numa if node.accelerator is None]
        allowed = [node.memory_total_bytes for node in own if node.usable]
        if len(allowed) < len(own) and allowed and all(size is not None for size in allowed):
            total = sum(size for size in allowed if size is not None)
            memory = memory.with_facts(cgroup.sources["cpuset_mems"], memory_set_bytes=total)
    if setting_bytes is not None:
        memory = memory.with_facts("setting", setting_bytes=setting_bytes)
    memory = memory.with_facts(
        "/sys/kernel/mm/hugepages",
        hugepages=_hugepages(tree) or None,
        transparent_hugepages=_transparent(tree),
    )
    if tree.is_live:
        soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        if soft != resource.RLIM_INFINITY:
            memory = memory.with_facts("getrlimit", lock_limit_bytes=soft)
    return memory


def _without_device_nodes(memory: Memory, numa: tuple[NumaNode, ...]) -> Memory:
    own = [node for node in numa if node.accelerator is None]
    devices = [node for node in numa if node.accelerator is not None]
    if memory.total_bytes is None or devices:
        totals = [node.memory_total_bytes for node in own if node.memory_total_bytes is not None]
        frees = [node.memory_free_bytes for node in own if node.memory_free_bytes is not None]
        if not totals:
            return memory
        device_free = sum(node.memory_free_bytes or 0 for node in devices)
        available = memory.kernel_available_bytes
        memory = memory.with_facts(
            f"{_NODES}/node*/meminfo",
            total_bytes=sum(totals),
            free_bytes=sum(frees) if frees else None,
            kernel_available_bytes=max(0, available - device_free) if available is not None else None,
        )
    return memory


def _hugepages(tree: Tree) -> tuple[HugePages, ...]:
    found: list[HugePages] = []
    folder = "/sys/kernel/mm/hugepages"
    for name in tree.names(folder):
        size = size_bytes(name.removeprefix("hugepages-")) if name.startswith("hugepages-") else None
        if size:
            total = line(tree, f"{folder}/{name}/nr_hugepages")
            free = line(tree, f"{folder}/{name}/free_hugepages")
            found.append(HugePages(size, _count(total), _count(free)))
    return tuple(sorted(found, key=lambda pages: pages.size_bytes))


def _count(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 16 else None


def _transparent(tree: Tree) -> str | None:
    text = line(tree, "/sys/kernel/mm/transparent_hugepage/enabled") or ""
    return text[text.index("[") + 1 : text.index("]")] if "[" in text and "]" in text[text.index("[") :] else None
