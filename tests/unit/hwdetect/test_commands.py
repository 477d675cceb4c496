"""`bayard hw` and `bayard doctor` as a person runs them."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from daemon.cli import run
from daemon.commands import hw
from hwdetect import Machine, torch_view
from hwdetect.command import Output
from hwdetect.torch_view import TorchView


@pytest.fixture(autouse=True)
def quick_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_view, "look", lambda limit_s: TorchView("2.0"))


def test_hw_prints_a_table_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["hw", "--state-dir", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "CPU" in shown
    assert str(tmp_path) in shown
    assert run(["hw", "--json", "--state-dir", str(tmp_path)]) == 0
    assert Machine.from_json(capsys.readouterr().out).disks[0].path == str(tmp_path)


def test_hw_of_a_recorded_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "meminfo").write_text("MemTotal: 1048576 kB\nMemAvailable: 524288 kB\n")
    assert run(["hw", "--root", str(tmp_path)]) == 0
    assert "1.0 GiB, available 512.0 MiB" in capsys.readouterr().out
    assert run(["hw", "--root", str(tmp_path / "none")]) == 78


def test_hw_watch_prints_changes_until_interrupted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "proc").mkdir()
    meminfo = tmp_path / "proc" / "meminfo"
    meminfo.write_text("MemTotal: 1048576 kB\n")
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            raise KeyboardInterrupt
        meminfo.write_text("MemTotal: 2097152 kB\n")

    monkeypatch.setattr(hw.time, "sleep", wait)
    assert run(["hw", "--watch", "--json", "--root", str(tmp_path)]) == 130
    first, second = capsys.readouterr().out.splitlines()
    assert json.loads(first)["memory"]["total_bytes"] == 1 << 30
    assert json.loads(second)["kind"] == "memory_limit"


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        (
            'warning: odd\n{"pairs": [{"source": "host", "target": 0, "bytes_per_s": 5e10}]}',
            "host to device 0: 50.0 GB/s",
        ),
        ('{"error": "torch sees no CUDA-like device"}', "not measured: torch sees no CUDA-like device"),
        ("Segmentation fault", "not measured: the copying process ended with status -11"),
    ],
)
def test_hw_links_prints_rates_or_why_there_are_none(
    answer: str, shown: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = torch_view.command.run

    def answered(argv: list[str], limit_s: float = 3.0) -> Output | None:
        copies = any("bytes_per_s" in part for part in argv)
        return Output(answer.encode(), -11 if "fault" in answer else 0) if copies else real(argv, limit_s=limit_s)

    monkeypatch.setattr(torch_view.command, "run", answered)
    assert run(["hw", "--links", "--state-dir", str(tmp_path)]) == 0
    assert shown in capsys.readouterr().out


def test_doctor_exit_status_ids_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--state-dir", str(tmp_path), "--run-dir", str(tmp_path)]
    assert run(["doctor", "--only", "memory.limit", *options]) == 0
    assert "memory.limit" in capsys.readouterr().out
    status = run(["doctor", "--json", "--skip", "torch", "--skip", "net", *options])
    results = json.loads(capsys.readouterr().out)
    assert {"memory.available", "disk.room"} <= {result["id"] for result in results}
    worst = {"ok": 0, "info": 0, "warning": 1, "error": 2}
    assert status == max(worst[result["verdict"]] for result in results)
    assert run(["doctor", "--only", "memory.limits", *options]) == 1
    assert "did you mean memory.limit" in capsys.readouterr().err


def test_doctor_bundle_holds_settings_without_secrets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "support.tar.gz"
    options = ["--only", "cpu.sets", "--state-dir", str(tmp_path), "--run-dir", str(tmp_path), "--bundle", str(path)]
    assert run(["doctor", *options]) in (0, 1)
    with tarfile.open(path) as archive:
        assert "bayard-support/extra/settings.json" in archive.getnames()
    assert run(["doctor", *options]) == 78
    assert "already" in capsys.readouterr().err
