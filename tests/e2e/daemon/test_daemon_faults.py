"""The daemon process under faults: signals, kills, folders and ports that are taken."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from migrations.index import REVISIONS
from tests.e2e.daemon.conftest import MODEL, ROOT, Daemon


class Stream:
    """One streamed chat in a thread: its events as they come."""

    def __init__(self, url: str, key: str, max_tokens: int) -> None:
        self.events: list[dict[str, Any]] = []
        self.done = False
        self.broken = False
        self.ended_mono: float | None = None
        self._ask = (url, key, max_tokens)
        self.thread = threading.Thread(target=self._read)
        self.thread.start()

    def _read(self) -> None:
        try:
            self._ask_and_read()
        except httpx.TransportError:
            self.broken = True
        self.ended_mono = time.monotonic()

    def _ask_and_read(self) -> None:
        url, key, max_tokens = self._ask
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": "hello"}],
            "max_tokens": max_tokens,
            "stream": True,
            "ignore_eos": True,
        }
        headers = {"authorization": f"Bearer {key}"}
        with (
            httpx.Client(timeout=60, trust_env=False) as client,
            client.stream("POST", f"{url}/v1/chat/completions", json=body, headers=headers) as answer,
        ):
            if answer.status_code != 200:
                self.events.append(json.loads(answer.read()))
            else:
                for line in answer.iter_lines():
                    if line == "data: [DONE]":
                        self.done = True
                    elif line.startswith("data: "):
                        self.events.append(json.loads(line[6:]))

    def join(self) -> Stream:
        self.thread.join(60)
        assert not self.thread.is_alive()
        return self

    @property
    def errors(self) -> list[dict[str, Any]]:
        return [event["error"] for event in self.events if "error" in event]

    @property
    def finishes(self) -> list[str]:
        choices = [choice for event in self.events for choice in event.get("choices", [])]
        return [choice["finish_reason"] for choice in choices if choice.get("finish_reason")]


def test_worker_killed_while_streaming_ends_every_stream_and_comes_back(faked: Daemon, key: str) -> None:
    faked.start()
    faked.until_serving()
    url = faked.url
    streams = [Stream(url, key, 1_000) for _ in range(8)]
    faked.until(lambda: all(len(stream.events) > 3 for stream in streams))
    pid = faked.worker()["pid"]
    killed_mono = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    for stream in streams:
        stream.join()
        assert stream.ended_mono is not None
        assert stream.ended_mono - killed_mono < 2.0
        assert [error["code"] for error in stream.errors] == ["worker_lost"]
        assert not stream.done, "a failed stream has no [DONE]"
    faked.until_serving()
    assert faked.worker()["pid"] != pid
    assert Stream(url, key, 5).join().finishes == ["length"]
    kinds = [(event["kind"], event["to_state"]) for event in faked.admin("events")["items"]]
    assert ("worker", "lost") in kinds


def test_stopped_worker_turns_health_red_and_is_replaced(faked: Daemon, key: str) -> None:
    faked.start()
    faked.until_serving()
    url = faked.url
    pid = faked.worker()["pid"]
    stream = Stream(url, key, 1_000)
    faked.until(lambda: len(stream.events) > 3)
    os.kill(pid, signal.SIGSTOP)
    seconds = faked.until(lambda: httpx.get(f"{url}/healthz").status_code == 503 or faked.worker()["pid"] != pid, 6.0)
    assert seconds < 5.0
    assert [error["code"] for error in stream.join().errors] == ["worker_stalled"]
    faked.until_serving()
    assert not psutil.pid_exists(pid)
    assert httpx.get(f"{url}/healthz").status_code == 200


def test_killed_daemon_leaves_nobody_and_starts_again(faked: Daemon, key: str) -> None:
    faked.start()
    faked.until_serving()
    pids = [faked.worker()["pid"], *(child.pid for child in psutil.Process(faked.pid).children(recursive=True))]
    stream = Stream(faked.url, key, 1_000)
    faked.until(lambda: len(stream.events) > 3)
    faked.stop()
    assert not stream.join().done, "the connection broke off"
    deadline = time.monotonic() + 5
    while any(psutil.pid_exists(pid) for pid in pids):
        assert time.monotonic() < deadline, [pid for pid in pids if psutil.pid_exists(pid)]
        time.sleep(0.02)
    faked.start()
    faked.until_serving()
    assert Stream(faked.url, key, 3).join().finishes == ["length"]


def test_first_sigterm_lets_streams_finish_and_refuses_new_ones(faked: Daemon, key: str) -> None:
    faked.start()
    faked.until_serving()
    url = faked.url
    stream = Stream(url, key, 40)
    faked.until(lambda: len(stream.events) > 3)
    os.kill(faked.pid, signal.SIGTERM)
    faked.until(lambda: "stop_asked" in faked.log)
    refused = Stream(url, key, 5).join()
    assert [error["code"] for error in refused.errors] == ["draining"]
    ready = httpx.get(f"{url}/readyz")
    assert ready.status_code == 503
    assert "stopping" in ready.text
    assert stream.join().finishes == ["length"]
    assert stream.done
    assert faked.wait() == 0
    assert "cut_requests=0" in faked.log
    assert list((faked.state_dir / "run").iterdir()) == []


def test_second_sigterm_waits_for_nothing(faked: Daemon, key: str) -> None:
    faked.start()
    faked.until_serving()
    stream = Stream(faked.url, key, 1_000)
    faked.until(lambda: len(stream.events) > 3)
    os.kill(faked.pid, signal.SIGTERM)
    faked.until(lambda: "stop_asked" in faked.log)
    begun = time.monotonic()
    os.kill(faked.pid, signal.SIGTERM)
    assert faked.wait() == 0
    assert time.monotonic() - begun < 6
    assert len(stream.join().errors) == 1
    assert not stream.done


def test_second_daemon_on_the_same_folder_is_refused_naming_the_first(daemon: Daemon) -> None:
    daemon.start()
    done = daemon.command("serve", "--port", "0", "--grpc-port", "0", ok=False)
    assert done.returncode == 78
    assert f"is in use by process {daemon.pid}" in done.stderr
    assert daemon.reachable()


@pytest.mark.parametrize("which", ["http", "grpc"])
def test_port_in_use_is_refused_naming_it(daemon: Daemon, which: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ports = {"http": "0", "grpc": "0"} | {which: port}
        done = daemon.command("serve", "--port", ports["http"], "--grpc-port", ports["grpc"], ok=False)
    assert done.returncode == 78
    assert f"port {port} on 127.0.0.1 is in use" in done.stderr
    assert f"(process {os.getpid()})" in done.stderr
    assert f"{which}.port" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[list[str]]:
    """Words in front of a command that make tmp_path read-only for it."""
    if os.geteuid() != 0:
        tmp_path.chmod(0o500)
        yield []
        tmp_path.chmod(0o700)
        return
    script = f'mount --bind "{tmp_path}" "{tmp_path}" && mount -o remount,ro,bind "{tmp_path}" && exec "$@"'
    words = ["unshare", "--mount", "sh", "-c", script, "sh"]
    if shutil.which("unshare") is None or subprocess.run([*words, "true"], capture_output=True, check=False).returncode:
        pytest.skip("root writes everywhere, and this place lets nobody make a read-only mount")
    yield words


@pytest.mark.parametrize("made_before", [False, True])
def test_read_only_state_folder_is_refused_with_a_hint(read_only: list[str], tmp_path: Path, made_before: bool) -> None:
    if made_before:
        tmp_path.chmod(0o700)
        first = [sys.executable, "-m", "daemon.cli", "models", "list", "--state-dir", str(tmp_path)]
        subprocess.run(first, cwd=ROOT, capture_output=True, check=True, timeout=60)
        if not read_only:
            tmp_path.chmod(0o500)
    done = subprocess.run(
        [*read_only, sys.executable, "-m", "daemon.cli", "serve", "--state-dir", str(tmp_path), "--port", "0"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        check=False,
    )
    assert done.returncode == 78, done.stderr
    assert f"the folder {tmp_path} cannot be written" in done.stderr
    assert "--state-dir" in done.stderr


def test_database_of_a_newer_version_is_refused_naming_both(daemon: Daemon) -> None:
    daemon.command("models", "list")
    with closing(sqlite3.connect(daemon.state_dir / "bayard.db")) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '0999_later'")
    done = daemon.command("serve", "--port", "0", "--grpc-port", "0", ok=False)
    assert done.returncode == 78
    assert "0999_later" in done.stderr
    assert REVISIONS[-1] in done.stderr
