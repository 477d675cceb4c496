"""The description itself: limits, JSON there and back, changes between two, the table, cost of a detection."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from hwdetect import Machine, detect
from hwdetect.accelerator import Accelerator, Capabilities, Link, LinkKind, Partition, State, Vendor
from hwdetect.changes import ChangeKind, changes
from hwdetect.facts import encode
from hwdetect.machine import Cpu, Disk, Host, Memory, Note, Severity
from hwdetect.render import size, table

GIB = 1 << 30
GPU = Accelerator.of(
    "test", vendor=Vendor.NVIDIA, index=0, name="NVIDIA \x1b[31mH200", pci_address="0000:00:06.0", uuid="GPU-1",
    memory_total_bytes=140 * GIB, memory_used_bytes=0, state=State.USABLE,
    links=(Link(1, LinkKind.NVLINK, "NV18", 18),),
    partitions=(Partition(0, "1g.18gb"),), capabilities=Capabilities(bf16=True, fp8=True), processes=(),
)  # fmt: skip


def machine(*devices: Accelerator, memory: Memory | None = None, cpu: Cpu | None = None) -> Machine:
    return Machine(
        host=Host(hostname="box", container="docker"),
        cpu=cpu
        or Cpu(model="C", logical_cpus=8, online=tuple(range(8)), usable_cpus=tuple(range(8)), physical_cores=4),
        memory=memory or Memory(total_bytes=64 * GIB, kernel_available_bytes=32 * GIB),
        accelerators=devices,
        disks=(Disk(path="/var/lib/bayard", free_bytes=GIB, total_bytes=2 * GIB),),
        notes=(Note(Severity.WARNING, "nvidia-smi", "hung", "reboot"),),
    )


@pytest.mark.parametrize(
    ("facts", "limit", "available"),
    [
        ({"total_bytes": 8 * GIB, "kernel_available_bytes": 6 * GIB}, 8 * GIB, 6 * GIB),
        ({"total_bytes": 8 * GIB, "kernel_available_bytes": 6 * GIB, "cgroup_limit_bytes": 4 * GIB,
          "cgroup_available_bytes": GIB}, 4 * GIB, GIB),
        ({"total_bytes": 8 * GIB, "kernel_available_bytes": 6 * GIB, "memory_set_bytes": 2 * GIB}, 2 * GIB, 2 * GIB),
        ({"total_bytes": 8 * GIB, "free_bytes": 5 * GIB, "setting_bytes": 7 * GIB}, 7 * GIB, 5 * GIB),
        ({"cgroup_limit_bytes": GIB}, GIB, None),
        ({}, None, None),
    ],
)  # fmt: skip
def test_memory_takes_the_smallest_limit(facts: dict[str, int], limit: int | None, available: int | None) -> None:
    memory = Memory(**facts)  # type: ignore[arg-type]
    assert memory.effective_limit_bytes == limit
    assert memory.available_bytes == available


@pytest.mark.parametrize(
    ("facts", "threads", "cores"),
    [
        ({"usable_cpus": tuple(range(8)), "usable_physical_cores": 4}, 8, 4),
        ({"usable_cpus": tuple(range(8)), "usable_physical_cores": 4, "quota_cpus": 2.5}, 2, 2),
        ({"usable_cpus": (0,), "usable_physical_cores": 1, "quota_cpus": 0.2}, 1, 1),
        ({"logical_cpus": 16}, 16, 16),
        ({}, 1, 1),
    ],
)
def test_cpu_counts_affinity_and_quota(facts: dict[str, object], threads: int, cores: int) -> None:
    cpu = Cpu(**facts)  # type: ignore[arg-type]
    assert (cpu.usable_threads, cpu.usable_cores) == (threads, cores)


def test_available_device_memory_is_what_is_left() -> None:
    assert GPU.available_bytes == 140 * GIB
    assert dataclasses.replace(GPU, memory_reserved_bytes=GIB, memory_used_bytes=GIB).available_bytes == 138 * GIB
    assert dataclasses.replace(GPU, memory_used_bytes=None).available_bytes is None
    assert dataclasses.replace(GPU, memory_free_bytes=0).available_bytes == 0


def test_json_gives_the_same_machine_back() -> None:
    first = machine(GPU)
    assert Machine.from_json(first.to_json()) == first
    assert Machine.from_json(detect().to_json()).cpu == detect().cpu


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("schema",), 99, "schema"),
        (("surprise",), 1, "surprise"),
        (("memory", "total_bytes"), "many", "Machine.memory.total_bytes"),
        (("memory", "total_bytes"), True, "expected int"),
        (("accelerators", 0, "colour"), "red", "colour"),
        (("accelerators", 0, "state"), "fine", "fine"),
        (("accelerators",), {}, "expected a list"),
        (("cpu",), [], "expected an object"),
    ],
)
def test_json_with_a_wrong_value_names_it(path: tuple[str | int, ...], value: object, message: str) -> None:
    data = encode(machine(GPU))
    where = data
    for step in path[:-1]:
        where = where[step]
    where[path[-1]] = value
    with pytest.raises(ValueError, match=message):
        Machine.from_json(json.dumps(data))


def test_filled_facts_keep_the_first_source_and_zero_is_known() -> None:
    first = Accelerator.of("a", vendor=Vendor.AMD, memory_used_bytes=0, processes=())
    second = Accelerator.of("b", vendor=Vendor.AMD, memory_used_bytes=5, name="X", processes=None)
    both = first.filled_from(second)
    assert (both.memory_used_bytes, both.name, both.processes) == (0, "X", ())
    assert (both.sources["memory_used_bytes"], both.sources["name"]) == ("a", "b")


def test_changes_name_lost_found_and_limited() -> None:
    other = dataclasses.replace(GPU, uuid="GPU-2", index=1, pci_address="0000:00:07.0")
    sick = dataclasses.replace(GPU, state=State.UNHEALTHY, reason="sensors")
    small = Memory(total_bytes=64 * GIB, cgroup_limit_bytes=GIB)
    found = changes(machine(GPU, other), machine(sick, memory=small, cpu=Cpu(logical_cpus=2)))
    assert [change.kind for change in found] == [
        ChangeKind.ACCELERATOR_LOST,
        ChangeKind.ACCELERATOR_STATE,
        ChangeKind.CPU_LIMIT,
        ChangeKind.MEMORY_LIMIT,
    ]
    back = changes(machine(GPU), machine(GPU, other))
    assert [(change.kind, change.after) for change in back] == [(ChangeKind.ACCELERATOR_FOUND, "usable")]
    assert changes(machine(GPU), machine(dataclasses.replace(GPU, memory_used_bytes=GIB, temperature_c=80.0))) == ()


def test_table_shows_facts_and_no_control_characters() -> None:
    broken = Accelerator.of(
        "t", vendor=Vendor.AMD, index=0, state=State.DRIVER_MISSING, reason="no driver", fix="sudo modprobe amdgpu"
    )
    text = table(machine(GPU, broken))
    assert "\x1b" not in text
    for part in ("nvidia:0", "140.0 GiB", "amd:0 driver_missing: no driver", "fix: sudo modprobe amdgpu", "slice 0",
                 "nvidia 0-1 are linked directly", "warning: nvidia-smi: hung"):  # fmt: skip
        assert part in text
    assert "none found" in table(machine())


@pytest.mark.parametrize(("count", "shown"), [(None, "-"), (0, "0 B"), (1536, "1.5 KiB"), (5 * GIB, "5.0 GiB")])
def test_size_reads_well(count: int | None, shown: str) -> None:
    assert size(count) == shown


MEASURE = """
import sys, time
started = time.perf_counter()
from hwdetect import detect
machine = detect()
took = time.perf_counter() - started
# VmHWM is this program's own peak; getrusage would give that of the process it was forked from
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(took, peak, len(machine.accelerators), "torch" in sys.modules)
"""


def test_detection_in_a_fresh_process_is_quick_and_small() -> None:
    """Import and all, on a machine without accelerators: at most half a second and 40 MB; the best of three runs."""
    runs = []
    for _ in range(3):
        result = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, check=True, timeout=60)
        seconds, kib, devices, torch = result.stdout.split()
        assert torch == "False"
        if int(devices):
            pytest.skip("this machine has accelerators: their drivers are asked, which takes longer")
        runs.append((float(seconds), int(kib)))
    assert min(seconds for seconds, _ in runs) <= 0.5
    assert min(kib for _, kib in runs) <= 40 * 1024


def test_thousand_detections_leave_nothing_behind() -> None:
    detect()
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    started = children.read_text()
    for _ in range(1000):
        detect()
    assert len(os.listdir("/proc/self/fd")) == before[0]
    assert threading.active_count() <= before[1]
    assert children.read_text() == started


def test_module_prints_table_json_and_captures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from hwdetect.__main__ import main

    assert main([]) == 0
    assert "Memory" in capsys.readouterr().out
    assert main(["--json"]) == 0
    assert Machine.from_json(capsys.readouterr().out).cpu.logical_cpus
    saved = tmp_path / "saved.txt"
    saved.write_text("No devices were found\n")
    assert main(["--capture", str(saved), "--tool", "nvidia-smi"]) == 0
    assert json.loads(capsys.readouterr().out)["problems"][0]["state"] == "unhealthy"
    assert main(["--capture", str(tmp_path / "none")]) == 2
    assert main(["--root", str(tmp_path / "none")]) == 2
