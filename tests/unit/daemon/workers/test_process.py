"""The spawn helper: no orphans, whoever dies first."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from daemon.workers.process import Spawner, WorkerProcess
from daemon.workers.view import ExitInfo
from engine.errors import WorkerLost

SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
WITH_CHILD = [
    sys.executable,
    "-c",
    "import subprocess, sys, time; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']);"
    "print(p.pid, flush=True); time.sleep(600)",
]
# a daemon in small: starts its helper and one worker with a child of its own, tells the pids, and waits
DAEMON = (
    "import asyncio, sys; from pathlib import Path; from daemon.workers.process import Spawner\n"
    "s = Spawner()\n"
    "async def main():\n"
    "    p = await s.spawn(eval(sys.argv[1]), env={}, log_path=Path(sys.argv[2]), log_bytes=9999)\n"
    "    print(s.helper_pid, p.pid, flush=True)\n"
    "    await asyncio.sleep(600)\n"
    "asyncio.run(main())\n"
)


async def spawn(spawner: Spawner, argv: list[str], log: Path, env: dict[str, str] | None = None) -> WorkerProcess:
    return await spawner.spawn(argv, env=env or {}, log_path=log, log_bytes=1 << 20)


def gone_within(pid: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.02)
    return False


def line_of(path: Path, seconds: float = 5.0) -> str:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if path.exists() and "\n" in (text := path.read_text()):
            return text.splitlines()[0]
        time.sleep(0.02)
    raise AssertionError(f"{path} stayed empty")


async def test_exit_status_and_output_are_told(spawner: Spawner, tmp_path: Path) -> None:
    program = "import os, sys; print('out'); print('err', file=sys.stderr); print(os.environ['X']); sys.exit(5)"
    process = await spawn(spawner, [sys.executable, "-c", program], tmp_path / "log", {"X": "value"})
    info = await asyncio.wait_for(process.exited, 10)
    assert (info.status, info.signal) == (5, None)
    assert sorted((tmp_path / "log").read_text().split()) == ["err", "out", "value"]


async def test_signal_that_killed_is_told(spawner: Spawner, tmp_path: Path) -> None:
    process = await spawn(spawner, SLEEP, tmp_path / "log")
    process.send(signal.SIGTERM)
    info = await asyncio.wait_for(process.exited, 10)
    assert (info.status, info.signal) == (None, 15)
    process.send(signal.SIGKILL)  # after the end: nothing happens


async def test_program_that_is_not_there_is_refused(spawner: Spawner, tmp_path: Path) -> None:
    with pytest.raises(WorkerLost, match="no/such"):
        await spawn(spawner, ["/no/such/program"], tmp_path / "log")
    process = await spawn(spawner, SLEEP, tmp_path / "log")  # the helper goes on
    assert psutil.pid_exists(process.pid)


async def test_children_of_a_killed_worker_are_killed(spawner: Spawner, tmp_path: Path) -> None:
    process = await spawn(spawner, WITH_CHILD, tmp_path / "log")
    grandchild = int(line_of(tmp_path / "log"))
    os.kill(process.pid, signal.SIGKILL)
    await asyncio.wait_for(process.exited, 10)
    assert gone_within(grandchild, 5)


async def test_worker_is_in_a_session_of_its_own(spawner: Spawner, tmp_path: Path) -> None:
    process = await spawn(spawner, SLEEP, tmp_path / "log")
    assert os.getsid(process.pid) == process.pid
    assert os.getpgid(process.pid) == process.pid


def test_no_orphans_when_the_daemon_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    daemon = subprocess.Popen(
        [sys.executable, "-c", DAEMON, repr(WITH_CHILD), str(log)], stdout=subprocess.PIPE, text=True
    )
    assert daemon.stdout is not None
    helper, worker = map(int, daemon.stdout.readline().split())
    grandchild = int(line_of(log))
    assert all(psutil.pid_exists(pid) for pid in (helper, worker, grandchild))
    daemon.kill()
    daemon.communicate()
    assert [pid for pid in (helper, worker, grandchild) if not gone_within(pid, 5)] == []


def test_no_orphans_when_daemon_and_helper_are_killed_at_once(tmp_path: Path) -> None:
    daemon = subprocess.Popen(
        [sys.executable, "-c", DAEMON, repr(SLEEP), str(tmp_path / "log")], stdout=subprocess.PIPE, text=True
    )
    assert daemon.stdout is not None
    helper, worker = map(int, daemon.stdout.readline().split())
    os.kill(helper, signal.SIGKILL)
    daemon.kill()
    daemon.communicate()
    assert gone_within(worker, 5), "the parent-death signal is the second line of defence"


async def test_killed_helper_is_noticed_and_replaced(spawner: Spawner, tmp_path: Path) -> None:
    process = await spawn(spawner, SLEEP, tmp_path / "log")
    os.kill(spawner.helper_pid, signal.SIGKILL)
    assert await asyncio.wait_for(process.exited, 5) == ExitInfo()
    assert gone_within(process.pid, 5)
    again = await spawn(spawner, SLEEP, tmp_path / "log2")
    assert psutil.pid_exists(again.pid)


async def test_ctrl_c_for_the_daemons_group_reaches_neither_helper_nor_worker(spawner: Spawner, tmp_path: Path) -> None:
    process = await spawn(spawner, SLEEP, tmp_path / "log")
    for pid in (spawner.helper_pid, process.pid):
        assert os.getpgid(pid) != os.getpgid(0)


async def test_closed_spawner_leaves_nobody(tmp_path: Path) -> None:
    spawner = Spawner()
    processes = [await spawn(spawner, SLEEP, tmp_path / f"log{n}") for n in range(3)]
    await asyncio.to_thread(spawner.close)
    assert [p.pid for p in processes if not gone_within(p.pid, 5)] == []
    assert not psutil.pid_exists(spawner.helper_pid)
    spawner.close()


async def test_much_output_does_not_stop_a_worker(spawner: Spawner, tmp_path: Path) -> None:
    program = "import sys\nfor n in range(200_000): print('line', n)\nsys.exit(0)"
    process = await spawner.spawn(
        [sys.executable, "-c", program], env={}, log_path=tmp_path / "log", log_bytes=64 << 10
    )
    assert (await asyncio.wait_for(process.exited, 20)).status == 0
    assert (tmp_path / "log").stat().st_size <= 64 << 10
    assert (tmp_path / "log").read_text().splitlines()[-1] == "line 199999"
