"""A real daemon in a folder of its own, with workers that answer at once: what the benches of the control plane use."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

ROOT = Path(__file__).resolve().parent.parent
NULL_ENGINE = f"{sys.executable} -m tests.fakes.fake_worker"
MODEL = "null"
DEFAULT_GGUF = ROOT / ".cache" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"


@dataclass
class Box:
    """Mutable. Owner: the bench; use through `box`."""

    state_dir: Path
    settings: dict[str, str] = field(default_factory=dict)
    keep: Path | None = None  # where the log and the exit status stay behind
    process: subprocess.Popen[bytes] | None = None
    url: str = ""

    def command(self, *argv: str) -> str:
        """Standard output of a bayard command. Raises: subprocess.CalledProcessError"""
        done = subprocess.run(
            [sys.executable, "-m", "daemon.cli", *argv, "--state-dir", str(self.state_dir)],
            capture_output=True, text=True, timeout=120, cwd=ROOT, env=self._env(), check=True,
        )  # fmt: skip
        return done.stdout

    def prepare(self, gguf: Path) -> None:
        """Import the model whose tokenizer is used; no weights are read by a null engine."""
        self.command("models", "import", str(gguf), "--name", MODEL, "--link")

    def tenant(self, name: str, *limits: str) -> str:
        """A new tenant's key."""
        self.command("tenants", "create", name, *limits)
        return self.command("keys", "create", "--tenant", name).strip()

    def start(self) -> float:
        """Seconds until the admin socket answers. The log is appended to."""
        begun = time.monotonic()
        with (self.state_dir / "serve.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "daemon.cli", "serve", "--state-dir", str(self.state_dir),
                 "--port", "0", "--grpc-port", "0"],
                stdout=log, stderr=log, cwd=ROOT, env=self._env(),
            )  # fmt: skip
        self.until(self.reachable)
        started_s = time.monotonic() - begun
        self.url = str(self.admin("status")["http"])
        return started_s

    def until_serving(self) -> float:
        return self.until(lambda: MODEL in self.admin("status")["models"], 60.0)

    def reachable(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(str(self.state_dir / "run" / "admin.sock")) != 0:
                return False
        try:
            return bool(self.admin("whoami"))
        except httpx.HTTPError:
            return False

    def admin(self, path: str, body: dict[str, object] | None = None) -> Any:
        """What a read, or with a body a write, of the admin API answers. Raises: RuntimeError, httpx.HTTPError"""
        transport = httpx.HTTPTransport(uds=str(self.state_dir / "run" / "admin.sock"))
        with httpx.Client(transport=transport, base_url="http://bayard", timeout=10) as client:
            url = f"/admin/v1/{path}"
            answer = client.get(url) if body is None else client.post(url, json=body)
            if answer.status_code >= 500:
                raise RuntimeError(f"{answer.text}\n{(self.state_dir / 'serve.log').read_text()[-6000:]}")
            return answer.raise_for_status().json()

    def until(self, what: Callable[[], bool], seconds: float = 30.0) -> float:
        begun = time.monotonic()
        while not what():
            assert self.process is not None
            if self.process.poll() is not None or time.monotonic() - begun > seconds:
                raise RuntimeError((self.state_dir / "serve.log").read_text()[-4000:])
            time.sleep(0.01)
        return time.monotonic() - begun

    def kill(self) -> None:
        """As the power would."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        """A clean stop; the exit status."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def script(self, **said: Any) -> None:
        """What the null engine does from now on; see tests/fakes/fake_worker.py."""
        draft = self.state_dir / "script.draft"
        draft.write_text(json.dumps(said))
        draft.replace(self.state_dir / "script.json")

    def figures(self) -> dict[str, int]:
        """Of the daemon's process alone."""
        assert self.process is not None
        if self.process.poll() is not None:
            log = (self.state_dir / "serve.log").read_text()[-6000:]
            raise RuntimeError(f"the daemon ended with status {self.process.returncode}:\n{log}")
        found = psutil.Process(self.process.pid)
        return {
            "rss_bytes": found.memory_info().rss,
            "fds": found.num_fds(),
            "threads": found.num_threads(),
        }

    def log_counts(self) -> dict[str, int]:
        """How often each event was logged; and the newest traceback is printed."""
        text = (self.state_dir / "serve.log").read_text()
        if "Traceback" in text:
            print(text[text.rindex("Traceback") :][:4000], file=sys.stderr)
        events: dict[str, int] = {}
        for line in text.splitlines():
            _, found, rest = line.partition("] ")
            if found and rest.split():
                events[rest.split()[0]] = events.get(rest.split()[0], 0) + 1
        return events

    def worker_figures(self) -> dict[str, int]:
        """Of every process below the daemon, together."""
        assert self.process is not None
        sums = {"workers_rss_bytes": 0, "workers_fds": 0, "workers_threads": 0}
        for child in psutil.Process(self.process.pid).children(recursive=True):
            try:
                with child.oneshot():
                    sums["workers_rss_bytes"] += child.memory_info().rss
                    sums["workers_fds"] += child.num_fds()
                    sums["workers_threads"] += child.num_threads()
            except psutil.NoSuchProcess:
                continue  # it ended between the listing and the look
        return sums

    def leave_traces(self) -> None:
        """Copy the log and the exit status out of the folder that goes."""
        if self.keep is None or self.process is None:
            return
        self.keep.mkdir(parents=True, exist_ok=True)
        shutil.copy(self.state_dir / "serve.log", self.keep / "serve.log")
        (self.keep / "exit-status").write_text(f"{self.process.returncode}\n")

    def _env(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("BAYARD_", "XDG_"))}
        own = {
            "BAYARD_WORKERS_COMMAND": NULL_ENGINE,
            "BAYARD_WORKERS_CALIBRATE_AFTER_S": "0",  # nothing else computes while a bench waits
            "PYTHONFAULTHANDLER": "1",
            "PYTHONPATH": str(ROOT),
            "FAKE_SCRIPT_FILE": str(self.state_dir / "script.json"),
        }
        own["FAKE_REPLY_IDS"] = json.dumps(list(range(1000, 1050)))  # words of the vocabulary, none that ends a text
        return {**kept, "OMP_NUM_THREADS": "2", "BAYARD_LOG_LEVEL": "warning", **own, **self.settings}


@contextmanager
def box(gguf: Path = DEFAULT_GGUF, *, keep: Path | None = None, **settings: str) -> Iterator[Box]:
    """A prepared box that is not running yet. settings: variables of the environment.

    keep: a folder that the daemon's log and exit status stay in, whatever comes.
    """
    with tempfile.TemporaryDirectory(prefix="bb-") as folder:
        made = Box(Path(folder), settings, keep)
        made.script()
        made.prepare(gguf)
        try:
            yield made
        finally:
            if made.process is not None and made.process.poll() is None:
                made.kill()
            made.leave_traces()
