"""Every case of the hardware corpus gives the facts that its index expects.

The corpus lies beside the project, in ../shared/hw; where it is not, these tests are skipped. What each file must give
is written in corpus_expected.json: memory in MiB, `unknown` are facts that must not be claimed.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from hwdetect import Machine, detect
from hwdetect.accelerator import Accelerator
from hwdetect.capture import parse_capture
from hwdetect.report import Report, link_groups
from hwdetect.text import format_cpu_list

CORPUS = Path(__file__).resolve().parents[4] / "shared" / "hw"
EXPECTED: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "corpus_expected.json").read_text())
MIB = 1 << 20

needs_corpus = pytest.mark.skipif(not CORPUS.is_dir(), reason=f"the hardware corpus is not at {CORPUS}")


def tools() -> dict[str, str]:
    rows = [json.loads(line) for line in (CORPUS / "INDEX.jsonl").read_text().splitlines() if line.strip()]
    return {row["file"]: row["tool"] for row in rows}


@needs_corpus
def test_expectations_cover_every_file_of_the_corpus() -> None:
    assert {path.name for path in CORPUS.glob("*.txt")} == set(EXPECTED)
    assert set(tools()) <= set(EXPECTED)


@needs_corpus
@pytest.mark.parametrize("hinted", [True, False], ids=["tool", "text"])
@pytest.mark.parametrize("name", EXPECTED)
def test_capture_gives_expected_facts(name: str, hinted: bool) -> None:
    """Also without the command's name, which a file sent by someone often lacks."""
    report = parse_capture((CORPUS / name).read_bytes(), tools().get(name, "") if hinted else "")
    check(report, EXPECTED[name])


def check(report: Report, want: dict[str, Any]) -> None:
    assert len(report.devices) == want["n"]
    if "vendor" in want:
        assert report.vendor == want["vendor"]
    for key, attribute in (("driver", "driver_version"), ("runtime", "runtime_version")):
        if key in want:
            assert getattr(report, attribute) == want[key]
    if "expected_devices" in want:
        assert report.expected_devices == want["expected_devices"]
    if "note" in want:
        assert any(want["note"] in note.text for note in report.notes)
    if "indices" in want:
        assert [device.index for device in report.devices] == want["indices"]
    if "groups" in want:
        assert [list(group) for group in link_groups(report.devices)] == want["groups"]
    if "link" in want:
        kinds = {link.kind for device in report.devices for link in device.links or ()}
        assert want["link"] in kinds
    check_problems(report, want)
    by_index = {device.index: device for device in report.devices}
    for device in report.devices:
        check_device(device, want.get("each", {}))
        for field in want.get("unknown", ()):
            assert getattr(device, field) is None, field
    for index, facts in want.get("dev", {}).items():
        check_device(by_index[int(index)], facts)
    check_host(report, want)


def check_problems(report: Report, want: dict[str, Any]) -> None:
    if "problems" in want:
        assert [[problem.state.value, problem.pci_address] for problem in report.problems] == want["problems"]
    if "reason" in want:
        assert any(want["reason"] in problem.reason for problem in report.problems)
    if "fix" in want:
        assert any(want["fix"] in problem.fix for problem in report.problems)


def mib(value: int | None) -> float | None:
    return None if value is None else value / MIB


def sliced(device: Accelerator) -> float:
    """Slices of one memory group share it: each group counts once."""
    groups = {part.memory_group: part.memory_total_bytes or 0 for part in device.partitions}
    return sum(groups.values()) / MIB


LOOK: dict[str, Any] = {
    "mib": lambda d: mib(d.memory_total_bytes),
    "parts": lambda d: len(d.partitions),
    "profiles": lambda d: [part.profile for part in d.partitions],
    "part_mib": lambda d: [mib(part.memory_total_bytes) for part in d.partitions],
    "memory_groups": lambda d: [part.memory_group for part in d.partitions],
    "slice_mib": sliced,
    "procs": lambda d: len(d.processes),
    "pids": lambda d: [process.pid for process in d.processes],
    "compute_procs": lambda d: sum(1 for process in d.processes if process.compute),
    "process_memory": lambda d: next((p.memory_bytes for p in d.processes if p.memory_bytes is not None), None),
    "cpus": lambda d: format_cpu_list(d.cpu_affinity),
    "links": lambda d: len(d.links),
    "name_from": lambda d: d.sources["name"],
    "nodes": lambda d: list(d.nodes),
}


def check_device(device: Accelerator, facts: dict[str, Any]) -> None:
    for key, value in facts.items():
        if key in LOOK:
            assert LOOK[key](device) == value, key
        elif key in ("bf16", "fp8", "fp4", "peer_access"):
            assert getattr(device.capabilities, key) is value, key
        elif key == "name_has":
            assert value in (device.name or "")
        elif key == "name_not":
            assert device.name != value
        elif key == "free_mib":
            assert device.available_bytes is not None
            assert abs(device.available_bytes / MIB - value) <= 1.5
        elif key == "warn":
            assert any(value in warning for warning in device.warnings)
        elif key == "min_used_percent":
            assert device.memory_used_percent is not None
            assert device.memory_used_percent >= value
        elif key == "lanes":
            assert {link.lanes for link in device.links or ()} == {value}
        elif key == "link_bytes":
            assert [link.bytes_per_s for link in device.links or ()] == [value]
        elif key == "link_to":
            peer, kind = value
            assert next(link.kind for link in device.links or () if link.peer == peer) == kind
        else:
            assert getattr(device, key) == value, key


def check_host(report: Report, want: dict[str, Any]) -> None:
    for key, value in want.get("host", {}).items():
        assert getattr(report.host, key) == value, key
    for key, value in want.get("mem", {}).items():
        assert report.memory is not None
        field = {"total_kib": "total_bytes", "limit_kib": "effective_limit_bytes"}[key]
        found = getattr(report.memory, field)
        assert (found if found is None else found // 1024) == value, key
    for key, value in want.get("cpu", {}).items():
        assert report.cpu is not None
        if key == "usable":
            assert len(report.cpu.usable_cpus) == value
        elif key == "usable_list":
            assert format_cpu_list(report.cpu.usable_cpus) == value
        elif key == "model_has":
            assert value in (report.cpu.model or "")
        elif key == "isa_has":
            assert value in report.cpu.isa_levels
        elif key == "kinds":
            assert [[kind.name, kind.cores] for kind in report.cpu.core_kinds] == value
        else:
            assert getattr(report.cpu, key) == value, key
    nodes = {node.node: node for node in report.numa}
    for number, facts in want.get("numa", {}).items():
        assert len(nodes[int(number)].cpus) == facts["n"]
        assert list(nodes[int(number)].cpus[:3]) == facts.get("head", list(nodes[int(number)].cpus[:3]))
    if "numa_count" in want:
        assert len(report.numa) == want["numa_count"]
    if "numa_usable" in want:
        assert [node.node for node in report.numa if node.usable] == want["numa_usable"]
    if "numa_devices" in want:
        assert [node.node for node in report.numa if node.accelerator] == want["numa_devices"]


TREES: dict[str, dict[str, Any]] = {
    "cgroup2-slurm-cpuset": {"logical_cpus": 32, "physical_cores": 32, "sockets": 4, "usable": "0-5", "nodes": 8},
    "intel-hybrid-i7-1370P": {"logical_cpus": 20, "physical_cores": 14, "sockets": 1, "kib": 32489496, "nodes": 1},
    "kunpeng920-2s-4numa": {"logical_cpus": 128, "physical_cores": 128, "sockets": 2, "kib": 527031224, "nodes": 4},
    "legacy-dev-cpuset": {"logical_cpus": 15, "sockets": 8, "usable": "0-3,5-6,12-15", "kib": 67106960, "nodes": 8},
    "nvidia-dgx-gb10": {"logical_cpus": 20, "physical_cores": 20, "kib": 125508468, "nodes": 1},
    "offline-cpu0-node0": {"logical_cpus": 17, "present_cpus": 24, "usable": "4-20", "nodes": 1},
    "power9-6xV100-gpu-numa-nodes": {"logical_cpus": 32, "sockets": 2, "usable": "0-15,88-103", "kib": 263791104},
}


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not CORPUS.is_dir():
        pytest.skip(f"the hardware corpus is not at {CORPUS}")
    folder = tmp_path_factory.mktemp("trees")
    for archive in (CORPUS / "trees").glob("*.tar.gz"):
        with tarfile.open(archive) as opened:
            opened.extractall(folder, filter="data")
    return folder


@pytest.mark.parametrize("name", TREES)
def test_tree_gives_expected_machine(trees: Path, name: str) -> None:
    want = TREES[name]
    machine = detect(trees / name)
    for key in ("logical_cpus", "physical_cores", "sockets", "present_cpus"):
        if key in want:
            assert getattr(machine.cpu, key) == want[key], key
    if "usable" in want:
        assert format_cpu_list(machine.cpu.usable_cpus) == want["usable"]
    if "kib" in want:
        assert machine.memory.total_bytes == want["kib"] * 1024
    if "nodes" in want:
        assert len(machine.numa) == want["nodes"]
    assert Machine.from_json(machine.to_json()) == machine


def test_tree_of_power9_gives_six_gpus_and_host_memory_without_theirs(trees: Path) -> None:
    machine = detect(trees / "power9-6xV100-gpu-numa-nodes")
    assert len(machine.accelerators) == 6
    assert {device.memory_total_bytes for device in machine.accelerators} == {0x3F0000000}
    assert [node.node for node in machine.numa if node.accelerator] == [250, 251, 252, 253, 254, 255]
    assert machine.memory.total_bytes == (129839104 + 133952000) * 1024
    assert machine.cpu.physical_cores == 8


def test_tree_of_hybrid_processor_gives_both_kinds_of_cores(trees: Path) -> None:
    kinds = detect(trees / "intel-hybrid-i7-1370P").cpu.core_kinds
    assert [(kind.name, kind.cores) for kind in kinds] == [("performance", 6), ("efficiency", 8)]
    kinds = detect(trees / "nvidia-dgx-gb10").cpu.core_kinds
    assert [(kind.name, kind.cores) for kind in kinds] == [("Arm Cortex-X925", 10), ("Arm Cortex-A725", 10)]
