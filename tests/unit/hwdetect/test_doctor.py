"""Checks, their ids and limits, and the archive for support."""

from __future__ import annotations

import dataclasses
import json
import socket
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hwdetect import checks, detect, torch_view
from hwdetect.accelerator import Accelerator, DeviceProcess, State, Vendor
from hwdetect.bundle import write_bundle
from hwdetect.checks import CHECKS
from hwdetect.doctor import Check, Context, Finding, Verdict, exit_status, run, table, worst
from hwdetect.machine import Cpu, Disk, Machine, Memory, Note, Severity
from hwdetect.redact import redact
from hwdetect.torch_view import TorchDevice, TorchView, compare

GIB = 1 << 30
DOCS = Path(__file__).resolve().parents[3] / "docs" / "hardware.md"


def context(**parts: object) -> Context:
    base = Machine(
        cpu=Cpu(isa_levels=("avx2",), logical_cpus=4, usable_cpus=(0, 1, 2, 3)),
        memory=Memory(total_bytes=64 * GIB, kernel_available_bytes=60 * GIB),
    )
    return Context(dataclasses.replace(base, **parts))  # type: ignore[arg-type]


def verdicts(name: str, given: Context) -> list[Verdict]:
    return [result.verdict for result in run(given, only=[name])]


def device(**facts: object) -> Accelerator:
    return Accelerator.of("t", **{"vendor": Vendor.NVIDIA, "index": 0, "name": "X", "state": State.USABLE, **facts})


@pytest.mark.parametrize(
    ("name", "parts", "verdict"),
    [
        ("cpu.sets", {"cpu": Cpu(isa_levels=("sse4_2", "avx"))}, Verdict.WARNING),
        ("cpu.limit", {"cpu": Cpu(logical_cpus=8, usable_cpus=(1,))}, Verdict.INFO),
        ("memory.available", {"memory": Memory(total_bytes=GIB, kernel_available_bytes=GIB // 4)}, Verdict.ERROR),
        ("memory.available", {"memory": Memory(total_bytes=GIB, kernel_available_bytes=GIB)}, Verdict.WARNING),
        ("memory.available", {"memory": Memory()}, Verdict.WARNING),
        ("memory.limit", {"memory": Memory(total_bytes=8 * GIB, cgroup_limit_bytes=GIB)}, Verdict.INFO),
        ("memory.lock", {"memory": Memory(lock_limit_bytes=65536), "accelerators": (device(),)}, Verdict.WARNING),
        ("disk.room", {"disks": (Disk(path="/x", free_bytes=GIB // 2),)}, Verdict.ERROR),
        ("disk.room", {"disks": (Disk(path="/x", free_bytes=5 * GIB),)}, Verdict.WARNING),
        ("disk.kind", {"disks": (Disk(path="/x", filesystem="nfs4"),)}, Verdict.ERROR),
        ("detection.complete", {"notes": (Note(Severity.WARNING, "x", "hung"),)}, Verdict.WARNING),
        ("detection.complete", {"notes": (Note(Severity.INFO, "x", "fine"),)}, Verdict.OK),
        ("accelerator.usable", {"accelerators": (device(state=State.DRIVER_MISSING, reason="none"),)}, Verdict.ERROR),
        ("accelerator.usable", {"accelerators": (device(state=State.NOT_EXPOSED),)}, Verdict.WARNING),
        ("accelerator.health", {"accelerators": (device(warnings=("3 uncorrected memory errors",)),)}, Verdict.WARNING),
        ("accelerator.busy", {"accelerators": (device(state=State.BUSY, reason="90 %"),)}, Verdict.WARNING),
    ],
)
def test_check_finds(name: str, parts: dict[str, object], verdict: Verdict) -> None:
    assert verdicts(name, context(**parts)) == [verdict]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.id)
def test_check_is_quiet_on_a_sound_machine(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_view, "look", lambda limit_s: TorchView("2.0"))
    monkeypatch.setattr(checks.resource, "getrlimit", lambda which: (65536, 65536))
    sound = context(accelerators=())
    assert all(verdict in (Verdict.OK, Verdict.INFO) for verdict in verdicts(check.id, sound))


def test_check_ids_are_unique_grouped_and_documented() -> None:
    ids = [check.id for check in CHECKS]
    assert len(ids) == len(set(ids))
    documented = DOCS.read_text()
    for name in ids:
        assert name.count(".") == 1
        assert f"`{name}`" in documented


def test_port_in_use_is_an_error_that_names_the_command() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        given = Context(Machine(), None, (("127.0.0.1", taken.getsockname()[1]),))
        (result,) = run(given, only=["net.ports"])
    assert result.verdict is Verdict.ERROR
    assert "ss -ltnp" in result.fix


def test_state_folder_that_is_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (result,) = run(Context(Machine(), tmp_path / "file" / "state"), only=["disk.writable"])
    assert result.verdict is Verdict.ERROR


def test_only_and_skip_take_groups_and_refuse_unknown_ids() -> None:
    ids = {result.id for result in run(context(), only=["memory"], skip=["memory.lock"])}
    assert ids == {"memory.available", "memory.limit", "memory.shared"}
    with pytest.raises(ValueError, match=r"did you mean memory\.limit"):
        run(context(), only=["memory.limits"])
    with pytest.raises(ValueError, match="there is no check"):
        run(context(), skip=["quux"])


def test_check_that_hangs_or_fails_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hwdetect.doctor.LIMIT_S", 0.2)

    def hang(given: Context) -> Iterator[Finding]:
        time.sleep(1.0)
        yield Finding(Verdict.ERROR, "late")

    def fail(given: Context) -> Iterator[Finding]:
        raise OSError("broken")
        yield

    listed = (Check("a.hang", "h", hang), Check("a.fail", "f", fail), Check("a.ok", "o", lambda given: ()))
    results = run(context(), checks=listed)
    assert [result.verdict for result in results] == [Verdict.WARNING, Verdict.WARNING, Verdict.OK]
    assert "did not end" in results[0].text
    assert "broken" in results[1].text


def test_exit_status_follows_the_worst() -> None:
    def result(verdict: Verdict) -> Check:
        return Check(f"x.{verdict}", "t", lambda given: (Finding(verdict, "text", "do this"),))

    for verdict, status in ((Verdict.OK, 0), (Verdict.INFO, 0), (Verdict.WARNING, 1), (Verdict.ERROR, 2)):
        results = run(context(), checks=(result(Verdict.INFO), result(verdict)))
        assert exit_status(results) == status
        assert "fix: do this" in table(results)
    assert worst(()) is Verdict.OK


@pytest.mark.parametrize(
    ("view", "devices", "said"),
    [
        (TorchView(None, problem="torch cannot be imported"), (), "cannot be imported"),
        (TorchView("2.0"), (device(),), "sees none"),
        (TorchView("2.0", (TorchDevice("cuda", 0, "X", GIB),)), (device(), device(index=1)), "1 of 2"),
        (TorchView("2.0", (TorchDevice("cuda", 0, "X", GIB),)), (), "only 0 were found"),
        (TorchView("2.0", (TorchDevice("cuda", 0, "X", GIB),)), (device(memory_total_bytes=2 * GIB),), "bytes"),
    ],
)
def test_torch_that_disagrees_is_noted(view: TorchView, devices: tuple[Accelerator, ...], said: str) -> None:
    assert any(said in note.text for note in compare(Machine(accelerators=devices), view))


def test_torch_that_agrees_is_not_noted() -> None:
    seen = TorchView("2.0", (TorchDevice("cuda", 0, "X", GIB),))
    assert compare(Machine(accelerators=(device(memory_total_bytes=GIB),)), seen) == ()


@pytest.mark.parametrize(
    ("text", "gone"),
    [
        ("Authorization: Bearer abc.def-123456", "abc.def-123456"),
        ("key sk-proj-0123456789abcdef", "0123456789abcdef"),
        ('{"password": "hunter2hunter2"}', "hunter2"),
        ("HF_TOKEN=hf_abcdefghijkl", "abcdefghijkl"),
        ("database_url = postgresql://bob:pw@db/x", "bob:pw"),
        ("GPU-01234567-89ab-cdef-0123-456789abcdef", "89ab-cdef"),
        ("link/ether 52:54:00:12:34:56", "52:54:00"),
        ("inet 10.1.2.3/24", "10.1.2.3"),
        ("inet6 fe80:1:2:3:4:5:6:7", "fe80:1:2"),
        ("Serial Number: 1650000000001", "1650000000001"),
        ("/home/alice/models", "alice"),
        ("mail alice@example.com", "alice@example"),
        ("-----BEGIN PRIVATE KEY-----\nMIIabc\n-----END PRIVATE KEY-----", "MIIabc"),
        ("host mybox-17 said", "mybox-17"),
    ],
)
def test_redact_removes(text: str, gone: str) -> None:
    assert gone not in redact(text, names=("mybox-17",))


@pytest.mark.parametrize(
    "text",
    ["0000:83:00.0", "driver 580.159.04", "listen 127.0.0.1:8080", "143771 MiB", "5.15.0-91-generic", "10de:2335"],
)
def test_redact_keeps_what_tells_about_hardware(text: str) -> None:
    assert redact(text, names=()) == text


def test_bundle_holds_redacted_parts_and_is_never_half_written(tmp_path: Path) -> None:
    process = DeviceProcess(7, "secret-job", GIB, True)
    machine = dataclasses.replace(detect(), accelerators=(device(uuid="GPU-7", processes=(process,)),))
    path = tmp_path / "support.tar.gz"
    extras = {"settings.json": '{"api_key": "sk-0123456789abcdef"}'}
    write_bundle(path, machine, run(context(), only=["memory"]), extras)
    with tarfile.open(path) as archive:
        parts = {name: archive.extractfile(name) for name in archive.getnames()}
        texts = {name: part.read().decode() for name, part in parts.items() if part}
    described = json.loads(texts["bayard-support/machine.json"])
    assert described["host"]["hostname"] is None
    assert described["accelerators"][0]["processes"][0]["name"] is None
    assert json.loads(texts["bayard-support/doctor.json"])[0]["id"] == "memory.available"
    whole = "".join(texts.values())
    for secret in ("secret-job", "GPU-7", "0123456789abcdef"):
        assert secret not in whole
    assert [entry.name for entry in tmp_path.iterdir()] == ["support.tar.gz"]
    with pytest.raises(FileExistsError):
        write_bundle(path, machine, ())
    with pytest.raises(OSError):
        write_bundle(tmp_path / "none" / "x.tar.gz", machine, ())
