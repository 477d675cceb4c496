"""NVML's answers through a stand-in for its Python binding, in the process of its own that asks it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hwdetect.accelerator import LinkKind, State
from hwdetect.vendors import nvidia

STAND_IN = """
from types import SimpleNamespace as Thing
import time

class NVMLError(Exception):
    pass

nvmlMemory_v2 = 2
GIB = 1 << 30

def nvmlInit():
    if {init!r}: raise NVMLError({init!r})
    time.sleep({sleep})
def nvmlShutdown(): pass
def nvmlSystemGetDriverVersion(): return b"580.159.04"
def nvmlSystemGetCudaDriverVersion_v2(): return 13000
def nvmlDeviceGetCount(): return 3
def nvmlDeviceGetHandleByIndex(n):
    if n == 2: raise NVMLError("GPU is lost")
    return n
def nvmlDeviceGetName(h): return "NVIDIA H200"
def nvmlDeviceGetUUID(h): return f"GPU-{{h}}"
def nvmlDeviceGetPciInfo(h): return Thing(busId=f"00000000:0{{h + 3}}:00.0", pciDeviceId=0x233510DE)
def nvmlDeviceGetMinorNumber(h): return h
def nvmlDeviceGetArchitecture(h): return 9
def nvmlDeviceGetCudaComputeCapability(h): return (9, 0)
def nvmlDeviceGetMemoryInfo(h, version=None):
    return Thing(total=140 * GIB, used=GIB, free=138 * GIB, reserved=GIB)
def nvmlDeviceGetEccMode(h): return [1, 1]
def nvmlDeviceGetMigMode(h): raise NVMLError("Not Supported")
def nvmlDeviceGetComputeRunningProcesses(h): return [Thing(pid=42, usedGpuMemory=GIB)]
def nvmlDeviceGetGraphicsRunningProcesses(h): return []
def nvmlSystemGetProcessName(pid): return b"worker"
def nvmlDeviceGetNvLinkState(h, n):
    if n > 3: raise NVMLError("Invalid")
    return 1
def nvmlDeviceGetNvLinkRemotePciInfo(h, n): return Thing(busId=f"00000000:0{{(1 - h) + 3}}:00.0")
def nvmlDeviceGetP2PStatus(a, b, index): return 0
def nvmlDeviceGetTopologyCommonAncestor(a, b): return 50
"""


@pytest.fixture
def binding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder at the front of the module path."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return tmp_path


def put(folder: Path, init: str = "", sleep: float = 0.0) -> None:
    (folder / "pynvml.py").write_text(STAND_IN.format(init=init, sleep=sleep))


def test_library_is_asked_for_every_device(binding: Path) -> None:
    put(binding)
    report = nvidia.ask_library()
    assert (report.driver_version, report.runtime_version, report.expected_devices) == ("580.159.04", "CUDA 13.0", 3)
    first, second = report.devices
    assert (first.name, first.pci_address, first.pci_id) == ("NVIDIA H200", "0000:03:00.0", "10de:2335")
    assert (first.memory_total_bytes, first.memory_reserved_bytes) == (140 << 30, 1 << 30)
    assert (first.ecc_enabled, first.partition_mode, first.temperature_c) == (True, None, None)
    assert [(p.pid, p.name, p.compute) for p in first.processes or ()] == [(42, "worker", True)]
    assert [(link.peer, link.kind, link.lanes, link.peer_access) for link in first.links or ()] == [
        (1, LinkKind.NVLINK, 4, True)
    ]
    assert [link.peer for link in second.links or ()] == [0]
    assert [(problem.state, problem.index) for problem in report.problems] == [(State.LOST, 2)]


@pytest.mark.parametrize(
    ("init", "state"),
    [("Driver Not Loaded", State.DRIVER_MISSING), ("Driver/library version mismatch", State.VERSION_MISMATCH)],
)
def test_library_that_cannot_start_gives_the_reason(binding: Path, init: str, state: State) -> None:
    put(binding, init=init)
    report = nvidia.ask_library()
    assert report.devices == ()
    assert [problem.state for problem in report.problems] == [state]


def test_library_that_hangs_is_left_after_the_limit(binding: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(binding, sleep=30)
    monkeypatch.setattr(nvidia.command, "LIMIT_S", 0.8)
    monkeypatch.setattr(nvidia.command.run, "__defaults__", (0.8,))
    report = nvidia.ask_library()
    assert report.devices == ()
    assert "did not answer" in report.notes[0].text


def test_binding_that_is_broken_is_a_note(binding: Path) -> None:
    (binding / "pynvml.py").write_text("raise RuntimeError('broken')")
    report = nvidia.ask_library()
    assert report.devices == ()
    assert report.notes
