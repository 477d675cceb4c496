"""The daemon on a disk that is full, and in a control group whose memory ends: it serves, says why, and recovers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.e2e.daemon.conftest import FAKE, MODEL, Daemon

BODY = {"model": MODEL, "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}]}
MEMORY = Path("/sys/fs/cgroup/memory")


def ask(daemon: Daemon, key: str) -> int:
    headers = {"authorization": f"Bearer {key}"}
    url = f"{daemon.url}/v1/chat/completions"
    return httpx.post(url, json=BODY, headers=headers, timeout=30, trust_env=False).status_code


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=24m", "bayard-test", str(place)]
    if os.geteuid() != 0 or subprocess.run(words, capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount a small file system here")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_full_disk_stops_no_request_and_loses_no_usage(
    prepared: tuple[Path, str], small_disk: Path, tmp_path: Path
) -> None:
    key = prepared[1]
    state = small_disk / "s"
    shutil.copytree(prepared[0], state)
    daemon = Daemon(state, {"BAYARD_WORKERS_COMMAND": FAKE, "BAYARD_WORKERS_BACKOFF_BASE_S": "0.1"})
    daemon.script(token_s=0.0)
    try:
        daemon.start()
        daemon.until_serving()
        assert ask(daemon, key) == 200
        daemon.until(lambda: sum(row["requests"] for row in daemon.admin("usage")["items"]) == 1)
        with (state / "filler").open("wb") as filler:
            try:
                while filler.write(b"x" * 65_536):
                    filler.flush()
            except OSError:
                pass
        for _ in range(5):
            assert ask(daemon, key) == 200
        status = {}

        def told() -> bool:
            status.update(daemon.admin("status"))
            return any("usage waits in memory" in reason for reason in status["reasons"])

        daemon.until(told)
        assert status["state"] == "degraded"
        ids = [item["id"] for item in daemon.admin("attention")["items"]]
        assert "usage.ledger" in ids
        assert ask(daemon, key) == 200
        (state / "filler").unlink()
        daemon.until(lambda: daemon.admin("status")["state"] == "serving")
        daemon.until(lambda: sum(row["requests"] for row in daemon.admin("usage")["items"]) == 7)
        os.kill(daemon.pid, 15)
        assert daemon.wait() == 0
        assert json.loads(daemon.command("audit", "verify", "--json").stdout)["whole"] is True
    finally:
        daemon.stop()


@pytest.fixture
def memory_group() -> Iterator[Path]:
    """A control group with 600 MB, of version 1 or 2, whichever this place lets us make."""
    group = MEMORY / f"bayard-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(600 << 20))
    except OSError:
        pytest.skip("no control group for memory can be made here")
    yield group
    for pid in (group / "cgroup.procs").read_text().split():
        (MEMORY / "cgroup.procs").write_text(pid)
    group.rmdir()


def test_worker_that_the_memory_killer_took_latches_with_the_cause(faked: Daemon, key: str, memory_group: Path) -> None:
    faked.env |= {"BAYARD_WORKERS_LATCH_AFTER": "2", "BAYARD_WORKERS_BACKOFF_BASE_S": "0.1"}
    faked.start()
    faked.until_serving()
    for process in [faked.pid, *(child.pid for child in psutil.Process(faked.pid).children())]:
        (memory_group / "cgroup.procs").write_text(str(process))
    faked.script(allocate_bytes=1 << 30)
    faked.admin_post(f"workers/{MODEL}/restart")
    faked.until(lambda: faked.worker()["state"] == "latched", 40)
    worker = faked.worker()
    assert (
        "killed by signal 9 (SIGKILL): out of memory in the service's control group; its limit is 0.6 GiB"
        in (worker["reason"])
    )
    assert worker["memory_at_exit_bytes"] > 200 << 20
    assert worker["memory_planned_bytes"] > 0
    assert worker["log_tail"] == ["taking memory"]
    (fault,) = [item for item in faked.admin("attention")["items"] if item["kind"] == "worker"]
    assert fault["severity"] == "fail"
    assert "out of memory" in fault["text"]
    faked.script(allocate_bytes=0)
    faked.admin_post(f"workers/{MODEL}/clear-latch")
    faked.until_serving()
    assert ask(faked, key) == 200
