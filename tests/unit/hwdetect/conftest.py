"""How a report is held against written expectations; shared by the corpus and by the project's own fixtures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hwdetect.accelerator import Accelerator
from hwdetect.report import Report, link_groups
from hwdetect.text import format_cpu_list

MIB = 1 << 20


@pytest.fixture(scope="session")
def check_report() -> Callable[[Report, dict[str, Any]], None]:
    """A function that holds a report against one expectation; its keys are those that `check` below reads."""
    return check


@pytest.fixture(scope="session")
def fixtures() -> Path:
    return Path(__file__).parent / "fixtures"


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
