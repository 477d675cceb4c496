"""Running tools: limits, environment, children, and nothing left behind."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hwdetect import command

Install = Callable[[str, str], Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Put a shell script on the fixed path."""
    monkeypatch.setattr(command, "PATH", f"{tmp_path}:/usr/bin:/bin")

    def put(name: str, script: str) -> Path:
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    return put


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def children() -> set[str]:
    return set(Path("/proc/self/task").joinpath(str(os.getpid()), "children").read_text().split())


def test_run_missing_tool_returns_none(install: Install) -> None:
    assert command.run(["no-such-tool-anywhere"]) is None


def test_run_gives_both_streams_and_the_status(install: Install) -> None:
    install("tool", "echo out; echo err >&2; exit 6")
    output = command.run(["tool"])
    assert output is not None
    assert output.text == b"out\n\nerr\n"
    assert output.exit_status == 6


def test_run_environment_is_fixed(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANG", "zh_CN.UTF-8")
    monkeypatch.setenv("BAYARD_SECRET", "x")
    install("tool", "env")
    output = command.run(["tool"])
    assert output is not None
    lines = dict(line.partition("=")[::2] for line in output.text.decode().splitlines())
    assert lines["LC_ALL"] == lines["LANG"] == "C"
    assert "BAYARD_SECRET" not in lines


def test_run_does_not_use_a_shell(install: Install, tmp_path: Path) -> None:
    install("tool", 'echo "$1"')
    output = command.run(["tool", f"; touch {tmp_path}/made"])
    assert output is not None
    assert not (tmp_path / "made").exists()


def test_run_hanging_tool_is_killed_with_its_children(install: Install, tmp_path: Path) -> None:
    install("tool", f"sleep 60 & echo $! > {tmp_path}/pid; echo part; wait")
    started = time.monotonic()
    output = command.run(["tool"], limit_s=0.5)
    assert time.monotonic() - started < 1.5
    assert output is not None
    assert output.timed_out
    assert output.text == b"part\n"
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 2
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not alive(pid)


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


def test_run_child_that_keeps_the_pipe_does_not_delay(install: Install) -> None:
    """The tool itself ends at once; what it started in the background holds its output open."""
    install("tool", "echo done; sleep 30 &")
    started = time.monotonic()
    output = command.run(["tool"], limit_s=0.5)
    assert time.monotonic() - started < 1.5
    assert output is not None
    assert b"done" in output.text


def test_run_endless_output_is_cut(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "OUTPUT_LIMIT_BYTES", 1 << 20)
    install("tool", "yes")
    output = command.run(["tool"], limit_s=5)
    assert output is not None
    assert output.truncated
    assert len(output.text) <= 1 << 20


def test_run_crash_gives_the_signal(install: Install) -> None:
    install("tool", "kill -SEGV $$")
    output = command.run(["tool"])
    assert output is not None
    assert output.exit_status == -11


def test_run_not_executable_format_returns_none(install: Install, tmp_path: Path) -> None:
    path = tmp_path / "tool"
    path.write_bytes(b"\x7fELF not really")
    path.chmod(0o755)
    assert command.run(["tool"]) is None


def test_run_many_times_leaves_no_descriptor_thread_or_process(install: Install) -> None:
    install("tool", "echo x")
    command.run(["tool"])
    before = open_descriptors(), threading.active_count(), children()
    for _ in range(200):
        command.run(["tool"])
    assert (open_descriptors(), threading.active_count(), children()) == before
