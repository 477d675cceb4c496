"""A real daemon process on free ports with a folder of its own."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

ROOT = Path(__file__).parents[3]
FAKE = f"{sys.executable} -m tests.fakes.fake_worker"
MODEL = "smollm"


@dataclass
class Daemon:
    """`bayard serve` and the means to look at it."""

    state_dir: Path
    env: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[str] | None = None
    started_mono: float = 0.0
    ready_s: float | None = None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def log(self) -> str:
        return (self.state_dir / "serve.log").read_text()

    def command(self, *argv: str, ok: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "daemon.cli", *argv, "--state-dir", str(self.state_dir)],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=ROOT,
            env=self._env(),
            check=False,
        )
        assert not ok or done.returncode == 0, done.stderr
        return done

    def start(self, *flags: str, wait: bool = True, stderr: int | None = None) -> None:
        self.started_mono = time.monotonic()
        with (self.state_dir / "serve.log").open("w") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "daemon.cli", "serve", "--state-dir", str(self.state_dir)),
                    *("--port", "0", "--grpc-port", "0", *flags),
                ],
                stdout=log,
                stderr=log if stderr is None else stderr,
                text=True,
                cwd=ROOT,
                env=self._env(),
            )
        if wait:
            self.until(lambda: " ready " in self.log and self.reachable())
            self.ready_s = time.monotonic() - self.started_mono

    def reachable(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self.state_dir / "run" / "admin.sock")) == 0

    def admin(self, path: str) -> Any:
        transport = httpx.HTTPTransport(uds=str(self.state_dir / "run" / "admin.sock"))
        with httpx.Client(transport=transport, base_url="http://bayard", timeout=10) as client:
            return client.get(f"/admin/v1/{path}").raise_for_status().json()

    def admin_post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        transport = httpx.HTTPTransport(uds=str(self.state_dir / "run" / "admin.sock"))
        with httpx.Client(transport=transport, base_url="http://bayard", timeout=10) as client:
            return client.post(f"/admin/v1/{path}", json=body).raise_for_status().json()

    @property
    def url(self) -> str:
        return str(self.admin("status")["http"])

    def worker(self) -> dict[str, Any]:
        items = self.admin("workers")["items"]
        assert len(items) == 1, items
        found: dict[str, Any] = items[0]
        return found

    def until(self, what: Callable[[], bool], seconds: float = 20.0) -> float:
        begun = time.monotonic()
        while not what():
            assert self.process is not None
            assert self.process.poll() is None, self.log
            assert time.monotonic() - begun < seconds, self.log
            time.sleep(0.02)
        return time.monotonic() - begun

    def until_serving(self) -> float:
        return self.until(lambda: self.admin("status")["models"] == [MODEL])

    def wait(self, seconds: float = 30.0) -> int:
        assert self.process is not None
        return self.process.wait(seconds)

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()

    def script(self, **said: Any) -> None:
        """What fake workers do from now on."""
        draft = self.state_dir / "script.draft"
        draft.write_text(json.dumps(said))
        draft.replace(self.state_dir / "script.json")

    def _env(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("BAYARD_", "XDG_"))}
        script = str(self.state_dir / "script.json")
        return {**kept, "OMP_NUM_THREADS": "2", "FAKE_SCRIPT_FILE": script, **self.env}


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    with tempfile.TemporaryDirectory(prefix="bd-") as folder:
        made = Daemon(Path(folder))
        try:
            yield made
        finally:
            made.stop()


@pytest.fixture(scope="session")
def prepared(smollm_path: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A stopped daemon's folder with the small model imported and a tenant; and the tenant's key."""
    made = Daemon(tmp_path_factory.mktemp("state"))
    made.command("models", "import", str(smollm_path), "--name", MODEL, "--link")
    made.command("tenants", "create", "demo")
    done = made.command("keys", "create", "--tenant", "demo")
    found = re.search(r"bk_live_\S+", done.stdout)
    assert found is not None, done.stdout
    return made.state_dir, found.group()


@pytest.fixture
def key(daemon: Daemon, prepared: tuple[Path, str]) -> str:
    """The daemon's folder is a copy of the prepared one; this is the key."""
    shutil.copytree(prepared[0], daemon.state_dir, dirs_exist_ok=True)
    return prepared[1]


@pytest.fixture
def faked(daemon: Daemon, key: str) -> Daemon:
    """The same, told to run fake workers that write slowly."""
    daemon.env["BAYARD_WORKERS_COMMAND"] = FAKE
    daemon.script(token_s=0.05)
    return daemon
