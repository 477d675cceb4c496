"""Where threads run and where weights lie, by /sys: one CPU a core, memory nodes in turns."""

from __future__ import annotations

import tarfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from engine.kernels.cpu import library

HARDWARE_CORPUS = Path(__file__).resolve().parents[5] / "shared" / "hw"


def tree(root: Path, cores: dict[int, str], nodes: dict[int, str], memory: str = "") -> Path:
    """A /sys of CPUs with their siblings, and of nodes with their CPUs."""
    for cpu, siblings in cores.items():
        folder = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{siblings}\n")
    folder = root / "sys/devices/system/node"
    folder.mkdir(parents=True)
    (folder / ("has_memory" if memory else "online")).write_text(f"{memory or f'0-{len(nodes) - 1}'}\n")
    for node, cpus in nodes.items():
        (folder / f"node{node}").mkdir()
        (folder / f"node{node}/cpulist").write_text(f"{cpus}\n")
    return root


def places(root: Path, allowed: list[int]) -> list[tuple[int, int]]:
    given = np.array(allowed, np.int32)
    cpus, nodes = np.zeros(len(given), np.int32), np.zeros(len(given), np.int32)
    count = library.load().bayard_places(
        str(root).encode(), given.ctypes.data, len(given), cpus.ctypes.data, nodes.ctypes.data
    )
    return list(zip(cpus[:count].tolist(), nodes[:count].tolist(), strict=True))


def test_two_nodes_with_hyperthreads_take_turns_one_cpu_a_core(tmp_path: Path) -> None:
    cores = {cpu: f"{cpu % 6},{cpu % 6 + 6}" for cpu in range(12)}
    root = tree(tmp_path, cores, {0: "0-2,6-8", 1: "3-5,9-11"})
    assert places(root, list(range(12))) == [(0, 0), (3, 1), (1, 0), (4, 1), (2, 0), (5, 1)]
    assert places(root, [1, 2, 7, 9]) == [(1, 0), (9, 1), (2, 0)]  # 7 is 1's sibling
    assert places(root, [4]) == [(4, 1)]


def test_one_node_keeps_the_order_of_the_cpus(tmp_path: Path) -> None:
    root = tree(tmp_path, {cpu: str(cpu) for cpu in range(4)}, {0: "0-3"})
    assert places(root, [3, 1, 2]) == [(3, 0), (1, 0), (2, 0)]


def test_nodes_without_memory_are_not_spread_over(tmp_path: Path) -> None:
    root = tree(tmp_path, {cpu: str(cpu) for cpu in range(4)}, {0: "0-1", 8: "2-3"}, memory="0")
    assert places(root, [0, 1, 2, 3]) == [(0, 0), (1, 0), (2, 0), (3, 0)]


def test_machine_that_tells_nothing_has_one_node_of_cores(tmp_path: Path) -> None:
    assert places(tmp_path, [2, 5, 6]) == [(2, 0), (5, 0), (6, 0)]


def test_broken_lists_are_read_as_far_as_they_go(tmp_path: Path) -> None:
    root = tree(tmp_path, {0: "", 1: "1"}, {0: "0-x", 1: "1,,7"}, memory="0-1,?")
    assert places(root, [0, 1]) == [(0, 0), (1, 1)]


@pytest.mark.parametrize(
    ("name", "allowed", "cores", "nodes"),
    [
        ("kunpeng920-2s-4numa", range(128), 128, {0: 32, 1: 32, 2: 32, 3: 32}),
        ("nvidia-dgx-gb10", range(20), 20, {0: 20}),
        ("power9-6xV100-gpu-numa-nodes", [*range(16), *range(88, 104)], 8, {0: 4, 8: 4}),
        ("offline-cpu0-node0", range(4, 21), None, None),
    ],
)
def test_recorded_machines(
    name: str, allowed: range, cores: int | None, nodes: dict[int, int] | None, tmp_path: Path
) -> None:
    archive = HARDWARE_CORPUS / "trees" / f"{name}.tar.gz"
    if not archive.is_file():
        pytest.skip(f"the hardware corpus is not at {HARDWARE_CORPUS}")
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path, filter="data")
    found = places(tmp_path / name, list(allowed))
    assert len({cpu for cpu, _ in found}) == len(found) <= len(allowed)
    assert cores is None or len(found) == cores
    counted = Counter(node for _, node in found)
    assert nodes is None or counted == nodes
    first = [node for _, node in found[: len(counted)]]
    assert len(set(first)) == len(counted)  # each node has one of the first threads


def test_this_machines_nodes_and_a_fresh_pages_spread() -> None:
    nodes = library.memory_nodes()
    assert nodes >= 1
    memory = np.zeros(1 << 20, np.uint8)
    assert library.load().bayard_interleave(memory.ctypes.data, memory.nbytes) in (1, nodes)


def quota(root: Path, groups: str, limits: dict[str, str]) -> int:
    """What the library makes of /proc/self/cgroup and of files below /sys/fs/cgroup."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    for name, text in limits.items():
        file = root / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
    return int(library.load().bayard_quota(str(root).encode()))


@pytest.mark.parametrize(
    ("groups", "limits", "wanted"),
    [
        ("0::/system.slice/bayard.service\n", {"system.slice/bayard.service/cpu.max": "250000 100000"}, 2),
        ("0::/a/b\n", {"a/cpu.max": "300000 100000", "a/b/cpu.max": "max 100000"}, 3),
        ("0::/a/b\n", {"a/cpu.max": "300000 100000", "a/b/cpu.max": "100000 50000"}, 2),
        ("0::/\n", {"cpu.max": "400000 100000"}, 4),
        ("0::/../../host/pod\n", {"cpu.max": "50000 100000"}, 1),
        ("0::/a\n", {"a/cpu.max": "max 100000"}, 0),
        ("0::/a\n", {}, 0),
        ("", {"cpu.max": "200000 100000"}, 2),
        (
            "4:memory:/m\n3:cpu,cpuacct:/slice/unit\n0::/u\n",
            {"cpu,cpuacct/slice/unit/cpu.cfs_quota_us": "600000", "cpu,cpuacct/slice/unit/cpu.cfs_period_us": "100000"},
            6,
        ),
        ("3:cpu:/c\n", {"cpu/c/cpu.cfs_quota_us": "-1", "cpu/c/cpu.cfs_period_us": "100000"}, 0),
        ("nonsense\n0:\n", {}, 0),
    ],
)
def test_quota_is_the_least_of_the_groups_own_and_those_above(
    groups: str, limits: dict[str, str], wanted: int, tmp_path: Path
) -> None:
    assert quota(tmp_path, groups, limits) == wanted
