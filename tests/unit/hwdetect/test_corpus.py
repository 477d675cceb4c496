"""Every case of the hardware corpus gives the facts that its index expects.

The corpus lies beside the project, in ../shared/hw; where it is not, these tests are skipped. What each file must give
is written in corpus_expected.json: memory in MiB, `unknown` are facts that must not be claimed.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hwdetect import Machine, detect
from hwdetect.capture import parse_capture
from hwdetect.text import format_cpu_list

CORPUS = Path(__file__).resolve().parents[4] / "shared" / "hw"
EXPECTED: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "corpus_expected.json").read_text())

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
def test_capture_gives_expected_facts(name: str, hinted: bool, check_report: Callable[..., None]) -> None:
    """Also without the command's name, which a file sent by someone often lacks."""
    report = parse_capture((CORPUS / name).read_bytes(), tools().get(name, "") if hinted else "")
    check_report(report, EXPECTED[name])


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


def test_tree_with_node_masks_alone_gives_their_cpus(trees: Path) -> None:
    nodes = detect(trees / "kunpeng920-2s-4numa").numa
    assert [format_cpu_list(node.cpus) for node in nodes] == ["0-31", "32-63", "64-95", "96-127"]


def test_tree_of_hybrid_processor_gives_both_kinds_of_cores(trees: Path) -> None:
    kinds = detect(trees / "intel-hybrid-i7-1370P").cpu.core_kinds
    assert [(kind.name, kind.cores) for kind in kinds] == [("performance", 6), ("efficiency", 8)]
    kinds = detect(trees / "nvidia-dgx-gb10").cpu.core_kinds
    assert [(kind.name, kind.cores) for kind in kinds] == [("Arm Cortex-X925", 10), ("Arm Cortex-A725", 10)]
