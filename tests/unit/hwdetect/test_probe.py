"""Finding accelerators: bus, nodes, drivers and tools together, on made-up machines with made-up tools."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest

from hwdetect import command
from hwdetect.accelerator import Accelerator, LinkKind, State, Vendor
from hwdetect.machine import Host, Memory, Note
from hwdetect.probe import find_accelerators, memory_nodes
from hwdetect.tree import FolderTree
from hwdetect.vendors import nvidia

FIXTURES = Path(__file__).parent / "fixtures"
GIB = 1 << 30


class Box:
    """A machine of files under a folder, asked as if it were the live one."""

    def __init__(self, root: Path, tools: Path) -> None:
        self.root, self.tools = root, tools
        self.tree = FolderTree(root)
        self.tree.is_live = True
        self.host = Host()
        self.memory = Memory(total_bytes=64 * GIB, free_bytes=60 * GIB, kernel_available_bytes=60 * GIB)

    def file(self, path: str, text: str = "") -> None:
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def pci(self, address: str, vendor: str, device: str, code: str, driver: str | None = None) -> None:
        folder = f"/sys/bus/pci/devices/{address}"
        for name, value in (("vendor", f"0x{vendor}"), ("device", f"0x{device}"), ("class", f"0x{code}00")):
            self.file(f"{folder}/{name}", value + "\n")
        if driver:
            (self.root / folder.lstrip("/") / "driver").symlink_to(f"../../drivers/{driver}")

    def tool(self, name: str, script: str) -> None:
        path = self.tools / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def prints(self, name: str, fixture: str) -> None:
        self.tool(name, f"cat {FIXTURES / fixture}")

    def find(self) -> tuple[tuple[Accelerator, ...], tuple[Note, ...]]:
        return find_accelerators(self.tree, self.host, self.memory)


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Box:
    root, tools = tmp_path / "root", tmp_path / "tools"
    root.mkdir()
    tools.mkdir()
    monkeypatch.setattr(command, "PATH", f"{tools}:/usr/bin:/bin")
    monkeypatch.setattr(nvidia, "ask_library", lambda: nvidia.from_answer({"error": "missing", "text": "none"}, "NVML"))
    return Box(root, tools)


def test_empty_machine_has_none_and_asks_no_tool(box: Box) -> None:
    box.tool("nvidia-smi", f"touch {box.tools}/asked")
    assert box.find() == ((), ())
    assert not (box.tools / "asked").exists()


def test_nvidia_without_driver_says_so_with_the_fix(box: Box) -> None:
    box.pci("0000:01:00.0", "10de", "2684", "0300")
    box.pci("0000:01:00.1", "10de", "22ba", "0403")
    (device,), _ = box.find()
    assert (device.name, device.state) == ("NVIDIA GeForce RTX 4090", State.DRIVER_MISSING)
    assert "modprobe nvidia" in device.fix
    assert device.memory_total_bytes is None


def test_nvidia_held_by_nouveau_or_vfio_is_not_usable(box: Box) -> None:
    box.pci("0000:01:00.0", "10de", "2684", "0300", "nouveau")
    box.pci("0000:02:00.0", "10de", "2684", "0300", "vfio-pci")
    devices, _ = box.find()
    assert [device.state for device in devices] == [State.DRIVER_MISSING, State.NOT_EXPOSED]
    assert "vfio-pci" in devices[1].reason


def test_nvidia_in_a_container_without_nodes_names_the_runtime(box: Box) -> None:
    box.pci("0000:01:00.0", "10de", "2684", "0300", "nvidia")
    box.host = Host(container="docker")
    (device,), _ = box.find()
    assert device.state is State.NOT_EXPOSED
    assert "--gpus all" in device.fix


def test_nvidia_tool_facts_are_joined_with_the_bus(box: Box) -> None:
    box.pci("0000:21:00.0", "10de", "27b8", "0302", "nvidia")
    box.file("/sys/bus/pci/devices/0000:21:00.0/numa_node", "1")
    box.pci("0000:c1:00.0", "10de", "27b8", "0302", "nvidia")
    for node in ("nvidia0", "nvidia1", "nvidiactl"):
        box.file(f"/dev/{node}")
    box.prints("nvidia-smi", "nvidia_table_two_gpus.txt")
    devices, _ = box.find()
    assert [(d.index, d.pci_id, d.state) for d in devices] == [
        (0, "10de:27b8", State.USABLE),
        (2, "10de:27b8", State.BUSY),
    ]
    assert devices[0].numa_node == 1
    assert devices[0].sources["numa_node"].startswith("/sys/bus/pci")
    assert devices[0].sources["memory_total_bytes"].startswith("nvidia-smi")


def test_lost_gpu_is_named_and_its_neighbour_stays_known(box: Box) -> None:
    box.pci("0000:03:00.0", "10de", "2204", "0300", "nvidia")
    box.pci("0000:04:00.0", "10de", "2204", "0300", "nvidia")
    for node in ("nvidia0", "nvidiactl"):
        box.file(f"/dev/{node}")
    box.tool(
        "nvidia-smi",
        'case "$1" in --query*) echo "index, name, pci.bus_id, memory.total [MiB]"; '
        'echo "0, NVIDIA X, 00000000:04:00.0, 24576 MiB";; '
        '*) echo "Unable to determine the device handle for GPU0000:03:00.0: GPU is lost."; exit 15;; esac',
    )
    devices, _ = box.find()
    states = {device.pci_address: device.state for device in devices}
    assert states == {"0000:03:00.0": State.LOST, "0000:04:00.0": State.USABLE}


def test_driver_that_lists_fewer_than_the_bus_marks_the_rest_lost(box: Box) -> None:
    for n in (1, 2):
        box.pci(f"0000:0{n}:00.0", "10de", "2204", "0300", "nvidia")
    box.file("/dev/nvidia0")
    box.tool(
        "nvidia-smi",
        'case "$1" in --query*) echo "index, name, pci.bus_id, memory.total [MiB]"; '
        'echo "0, NVIDIA X, 00000000:01:00.0, 24576 MiB";; *) exit 1;; esac',
    )
    devices, _ = box.find()
    assert {device.pci_address: device.state for device in devices} == {
        "0000:01:00.0": State.USABLE,
        "0000:02:00.0": State.LOST,
    }


@pytest.mark.skipif(os.geteuid() == 0 and not sys.platform.startswith("linux"), reason="needs file permissions")
def test_node_without_permission_names_the_group(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    box.pci("0000:21:00.0", "10de", "27b8", "0302", "nvidia")
    for node in ("nvidia0", "nvidiactl"):
        box.file(f"/dev/{node}")
    monkeypatch.setattr(os, "access", lambda path, mode: not str(path).endswith("nvidiactl"))
    box.tool("nvidia-smi", "echo 'Failed to initialize NVML: Unknown Error'; exit 1")
    (device,), _ = box.find()
    assert device.state in (State.NO_PERMISSION, State.UNKNOWN)
    box.tool("nvidia-smi", "exit 1")
    (device,), _ = box.find()
    assert device.state is State.NO_PERMISSION
    assert "usermod" in device.fix


def test_unified_memory_is_the_hosts_and_counted_once(box: Box) -> None:
    box.pci("000f:01:00.0", "10de", "2e12", "0302", "nvidia")
    for node in ("nvidia0", "nvidiactl"):
        box.file(f"/dev/{node}")
    box.tool("nvidia-smi", "echo '0, NVIDIA GB10, [N/A], [N/A]'")
    (device,), _ = box.find()
    assert device.unified is True
    assert device.memory_total_bytes == 64 * GIB
    assert device.memory_free_bytes == 60 * GIB
    assert device.sources["memory_total_bytes"] == "host memory (unified)"


def test_jetson_is_found_from_the_device_tree(box: Box) -> None:
    box.file("/proc/device-tree/model", "NVIDIA Jetson Orin Nano\0")
    box.file("/proc/device-tree/compatible", "nvidia,p3767\0nvidia,tegra234\0")
    box.file("/dev/nvhost-gpu")
    (device,), _ = box.find()
    assert device.vendor is Vendor.NVIDIA
    assert (device.unified, device.usable, device.memory_total_bytes) == (True, True, 64 * GIB)


def test_amd_from_sysfs_alone(box: Box) -> None:
    box.pci("0000:63:00.0", "1002", "74a1", "1200", "amdgpu")
    card = "/sys/class/drm/card1/device"
    box.file(f"{card}/uevent", "DRIVER=amdgpu\nPCI_SLOT_NAME=0000:63:00.0\n")
    box.file(f"{card}/mem_info_vram_total", str(192 * GIB))
    box.file(f"{card}/mem_info_vram_used", str(GIB))
    box.file(f"{card}/drm/renderD128/dev")
    box.file("/sys/class/kfd/kfd/topology/nodes/1/properties",
             "simd_count 1216\nsimd_per_cu 4\nlocation_id 25344\ndomain 0\ngfx_target_version 90402\n")  # fmt: skip
    box.file("/sys/module/amdgpu/version", "6.10.5")
    for node in ("kfd", "dri/renderD128"):
        box.file(f"/dev/{node}")
    (device,), _ = box.find()
    assert (device.name, device.architecture, device.compute_units) == ("AMD Instinct MI300X", "gfx942", 304)
    assert (device.memory_total_bytes, device.available_bytes) == (192 * GIB, 191 * GIB)
    assert (device.driver_version, device.state) == ("6.10.5", State.USABLE)
    assert device.nodes == ("/dev/dri/renderD128",)


@pytest.mark.parametrize(
    ("vendor", "ids", "code", "tool", "fixture", "nodes"),
    [
        (Vendor.CAMBRICON, ("cabc", "0590"), "1200", "cnmon", "cambricon_table.txt", ("cambricon_dev0",)),
        (Vendor.METAX, ("9999", "4001"), "0380", "mx-smi", "metax_table_bad_state.txt", ("mxcd", "dri/renderD128")),
        (Vendor.GAUDI, ("1da3", "1060"), "1200", "hl-smi", "gaudi_table.txt", ("accel/accel0",)),
        (Vendor.KUNLUNXIN, ("1d22", "3684"), "1200", "xpu-smi", "kunlun_table.txt", ("xpu5", "xpuctrl")),
        (Vendor.ILUVATAR, ("1e3e", "0001"), "1200", "ixsmi", "iluvatar_table.txt", ("iluvatar0",)),
        (Vendor.MTHREADS, ("1ed5", "0323"), "0300", "mthreads-gmi", "mthreads_wide.txt", ("mtgpu.0",)),
        (Vendor.ENFLAME, ("1e36", "c041"), "1200", "efsmi", "enflame_table.txt", ("gcu0",)),
        (Vendor.ASCEND, ("19e5", "d802"), "1200", "npu-smi", "ascend_table_mixed_health.txt", ("davinci0",)),
        (Vendor.THEAD, ("1ded", "6000"), "1200", "ppu-smi", "thead_query.csv", ("alixpu_ppu0", "alixpu")),
    ],
)  # fmt: skip
def test_vendor_tool_is_asked_when_its_device_is_there(
    box: Box, vendor: Vendor, ids: tuple[str, str], code: str, tool: str, fixture: str, nodes: tuple[str, ...]
) -> None:
    box.pci("0000:5a:00.0", *ids, code, "some-driver")
    for node in nodes:
        box.file(f"/dev/{node}")
    box.prints(tool, fixture)
    devices, _ = box.find()
    listed = [device for device in devices if device.memory_total_bytes]
    assert listed
    assert {device.vendor for device in devices} == {vendor}


def test_two_vendors_with_one_tool_name_are_kept_apart(box: Box) -> None:
    """Kunlunxin's and Intel's tools are both called xpu-smi."""
    box.pci("0000:03:00.0", "8086", "e20b", "0300", "xe")
    box.file("/dev/dri/renderD128")
    box.prints("xpu-smi", "kunlun_table.txt")
    devices, _ = box.find()
    assert [(device.vendor, device.memory_total_bytes) for device in devices] == [(Vendor.INTEL, None)]


def test_hanging_tools_delay_the_rest_by_at_most_three_seconds(box: Box) -> None:
    box.pci("0000:01:00.0", "10de", "2684", "0300", "nvidia")
    box.pci("0000:02:00.0", "1002", "74a1", "1200", "amdgpu")
    box.pci("0000:03:00.0", "9999", "4001", "0380", "metax")
    for tool in ("nvidia-smi", "amd-smi", "rocm-smi", "mx-smi"):
        box.tool(tool, "sleep 60")
    started = time.monotonic()
    devices, notes = box.find()
    assert time.monotonic() - started < 3.9
    assert len(devices) == 3
    assert any("did not end within 3 s" in note.text for note in notes)


def test_memory_nodes_come_from_the_nvidia_driver(box: Box) -> None:
    box.file("/proc/driver/nvidia/gpus/0009:01:00.0/numa_status",
             "Node:      9\nStatus:    online\nAddress:   1000\nSize:      1000000000\n")  # fmt: skip
    assert memory_nodes(box.tree) == {9: "0009:01:00.0"}


def test_library_answer_is_read_in_every_field() -> None:
    answer = {
        "driver": "580.1", "cuda": "13.0", "count": 2, "lost": [1],
        "devices": [{
            "index": 0, "name": "NVIDIA H200", "uuid": "GPU-1", "bus": "00000000:00:06.0", "pci_device_id": 0x233510DE,
            "minor": 0, "architecture": "Hopper", "capability": "9.0", "total": 150 * GIB, "used": 0, "free": 149 * GIB,
            "reserved": GIB, "utilisation": 0, "temperature": 31, "power_mw": 79000, "power_limit_mw": 700000,
            "ecc": True, "ecc_uncorrected": 0, "mig": False, "slices": [], "processes": [], "generation": 5,
            "generation_max": 5, "width": 16, "width_max": 16, "cores": 16896, "nvlinks": {"": 18},
        }],
        "peers": [],
    }  # fmt: skip
    report = nvidia.from_answer(json.loads(json.dumps(answer)), "NVML")
    (device,) = report.devices
    assert (device.pci_id, device.pci_address, device.nodes) == ("10de:2335", "0000:00:06.0", ("/dev/nvidia0",))
    assert (device.power_w, device.power_limit_w, device.partition_mode) == (79.0, 700.0, "none")
    assert device.processes == ()
    assert [(link.kind, link.lanes, link.peer) for link in device.links or ()] == [(LinkKind.NVLINK, 18, None)]
    assert [problem.index for problem in report.problems] == [1]
