"""The daemon process as it is meant to be: quick, small, without torch, and known to systemd."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import httpx
import psutil
import pytest

from tests.e2e.daemon.conftest import MODEL, Daemon

MUST_START_S = 3.0
MUST_RSS_BYTES = 200 << 20


def test_daemon_without_a_model_starts_fast_stays_small_and_says_it_is_not_ready(daemon: Daemon) -> None:
    daemon.start()
    assert daemon.ready_s is not None
    busy = os.getloadavg()[0] > (os.cpu_count() or 1) / 2  # waiting for others' work is no fault of the daemon's
    used = psutil.Process(daemon.pid).cpu_times()
    assert (used.user + used.system if busy else daemon.ready_s) < MUST_START_S
    assert psutil.Process(daemon.pid).memory_info().rss < MUST_RSS_BYTES
    ready = httpx.get(f"{daemon.url}/readyz")
    assert ready.status_code == 503
    assert "bayard models import" in ready.text
    assert httpx.get(f"{daemon.url}/healthz").status_code == 200
    done = daemon.command("status")
    assert "SERVING" in done.stdout
    assert "No worker is wanted" in done.stdout
    os.kill(daemon.pid, signal.SIGINT)
    assert daemon.wait() == 0


@pytest.mark.slow
def test_real_worker_answers_through_the_daemon_which_never_loads_torch(daemon: Daemon, key: str) -> None:
    daemon.start()
    daemon.until_serving()
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "max_tokens": 24,
        "temperature": 0,
    }
    headers = {"authorization": f"Bearer {key}"}
    url = f"{daemon.url}/v1/chat/completions"
    answer = httpx.post(url, json=body, headers=headers, timeout=60).json()
    assert "Paris" in answer["choices"][0]["message"]["content"]
    maps = Path(f"/proc/{daemon.pid}/maps").read_text()
    assert "_pydantic_core" in maps, "the maps do show loaded modules"
    for module in ("torch", "triton"):
        assert f"/{module}/" not in maps
        assert f"lib{module}" not in maps
    assert "libtorch" in Path(f"/proc/{daemon.worker()['pid']}/maps").read_text()
    assert psutil.Process(daemon.pid).memory_info().rss < MUST_RSS_BYTES
    metrics = httpx.get(f"{daemon.url}/metrics").text
    assert f'bayard_worker_state{{model="{MODEL}",state="ready",worker="{MODEL}"}} 1.0' in metrics
    assert f'bayard_requests_total{{model="{MODEL}",outcome=' in metrics
    shown = daemon.command("status", "--json").stdout
    assert f'"model": "{MODEL}"' in shown
    first = daemon.worker()["pid"]
    os.kill(first, signal.SIGKILL)
    daemon.until(
        lambda: daemon.worker()["pid"] not in (first, None) and daemon.admin("status")["models"] == [MODEL], 60
    )
    again = httpx.post(url, json=body, headers=headers, timeout=60).json()
    assert again["choices"][0]["message"] == answer["choices"][0]["message"]


def datagrams_until_silence(manager: socket.socket) -> int:
    for count in range(100):
        try:
            manager.recv(4096)
        except TimeoutError:
            return count
    raise AssertionError("it never fell silent")


def test_systemd_is_told_ready_status_watchdog_and_stopping(daemon: Daemon) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        path = daemon.state_dir / "notify"
        manager.bind(str(path))
        manager.settimeout(10)
        daemon.env = {"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "600000"}
        daemon.start()
        first = manager.recv(4096).decode()
        assert first.startswith("READY=1\nSTATUS=no model loaded; listening on http://127.0.0.1:")
        assert "WATCHDOG=1" in manager.recv(4096).decode()
        os.kill(daemon.pid, signal.SIGSTOP)  # a daemon that hangs stops pinging
        manager.settimeout(0.7)
        assert datagrams_until_silence(manager) < 10
        os.kill(daemon.pid, signal.SIGCONT)
        os.kill(daemon.pid, signal.SIGTERM)
        manager.settimeout(10)
        told = ""
        while "STOPPING=1" not in told:
            told = manager.recv(4096).decode()
        assert "EXTEND_TIMEOUT_USEC=" in told
    assert daemon.wait() == 0


def test_daemon_whose_log_lost_its_reader_serves_and_stops(daemon: Daemon) -> None:
    reading, writing = os.pipe()
    daemon.start(stderr=writing, wait=False)
    os.close(writing)
    with open(reading) as log:
        assert any(" ready " in line for line in log)
    assert daemon.command("status").returncode == 0
    os.kill(daemon.pid, signal.SIGTERM)
    assert daemon.wait() == 0


def test_hangup_does_not_end_the_daemon(daemon: Daemon) -> None:
    daemon.start()
    os.kill(daemon.pid, signal.SIGHUP)
    daemon.until(lambda: "settings_reloaded" in daemon.log)
    assert daemon.reachable()
