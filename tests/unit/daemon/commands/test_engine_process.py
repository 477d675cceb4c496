"""A command's child ends with it, however it is told to, and neither leaves a trace on the terminal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from daemon.commands import engine_process

SLOW = """
import os, signal, sys, time
from pathlib import Path
from engine.quantize.words import run

def begun(words):
    here = Path(words[0])
    here.with_suffix(".new").write_text(str(os.getpid()))
    here.with_suffix(".new").rename(here)

if "--importing" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # which would end it before its trace is told
    begun(sys.argv[1:])
    time.sleep(30)

def main(words):
    if "--deaf" in words:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
    print('{"stage": "slow", "done": 1, "total": 2}', flush=True)
    begun(words)
    while True:
        if "--chatty" in words:
            print('{"stage": "slow", "done": 1, "total": 2}', flush=True)
        time.sleep(0.02)

run(main, sys.argv[1:])
"""
COMMAND = """
import sys
from daemon.commands import engine_process
engine_process._STOP_S = float(sys.argv[1])
try:
    engine_process.run_module("slow_child", sys.argv[2:])
except KeyboardInterrupt:
    sys.exit(130)
"""


def begun(tmp_path: Path, *words: str, stop_s: float = 10.0) -> tuple[subprocess.Popen[str], int]:
    """The command, and its child's process id, once that has begun."""
    (tmp_path / "slow_child.py").write_text(SLOW)
    where = [str(tmp_path), *sys.path]
    told = tmp_path / "pid"
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, str(stop_s), str(told), *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, where))},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    until(told.exists)
    return process, int(told.read_text())


def until(done: object, seconds: float = 20.0) -> None:
    assert callable(done)
    limit_mono = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < limit_mono, "it did not happen in time"
        time.sleep(0.01)


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_command_told_to_end_stops_its_child(tmp_path: Path, number: signal.Signals, status: int) -> None:
    process, child = begun(tmp_path)
    process.send_signal(number)
    _, errors = process.communicate(timeout=8)  # less than the child would be waited for
    assert process.returncode == status
    assert is_gone(child)
    assert "Traceback" not in errors


@pytest.mark.parametrize("words", [[], ["--importing"]], ids=["at work", "importing"])
def test_ctrl_c_on_a_terminal_leaves_no_trace(tmp_path: Path, words: list[str]) -> None:
    process, child = begun(tmp_path, *words, stop_s=0.3)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=8)
    assert process.returncode == 130
    assert is_gone(child)
    assert "Traceback" not in errors


def test_ctrl_c_that_the_child_hears_too_leaves_no_trace(tmp_path: Path) -> None:
    """However often it is told to end, and by whom."""
    process, child = begun(tmp_path)
    for pid in (child, process.pid, child):
        os.kill(pid, signal.SIGINT)
    os.kill(child, signal.SIGTERM)
    _, errors = process.communicate(timeout=8)
    assert process.returncode == 130
    assert is_gone(child)
    assert not [line for line in errors.splitlines() if "slow" not in line], errors


def test_child_that_does_not_stop_is_killed_without_a_trace(tmp_path: Path) -> None:
    process, child = begun(tmp_path, "--deaf", stop_s=0.2)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=8)
    assert process.returncode == 143
    assert is_gone(child)
    assert "Traceback" not in errors


def test_child_that_nobody_listens_to_ends_in_silence(tmp_path: Path) -> None:
    process, child = begun(tmp_path, "--chatty")
    process.kill()
    _, errors = process.communicate(timeout=8)  # the child holds the terminal's end of it until it is gone
    until(lambda: is_gone(child))
    assert errors.strip() in ("", "slow 1 of 2", "slow: 1 of 2")


def test_signals_are_as_before_afterwards_and_what_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with engine_process.told_to_end():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
            with pytest.raises(SystemExit) as ended:
                signal.raise_signal(signal.SIGTERM)
        assert ended.value.code == 143
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)
