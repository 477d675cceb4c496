"""A real daemon with a real model, in a process of its own, for tests that speak to it as clients do."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parents[2]
STARTED_WITHIN_S = 60.0


@dataclass(frozen=True)
class RealServer:
    """url is the HTTP API's; key belongs to the tenant `demo`, which has no limits."""

    state_dir: Path
    url: str
    grpc: str
    key: str

    def reachable(self) -> bool:
        """Whether the admin API's socket is listened on."""
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self.state_dir / "run" / "admin.sock")) == 0

    def admin(self, method: str, path: str, body: Any = None) -> Any:
        """The admin API's answer, over its unix socket."""
        transport = httpx.HTTPTransport(uds=str(self.state_dir / "run" / "admin.sock"))
        with httpx.Client(transport=transport, base_url="http://bayard/admin/v1/", timeout=20) as client:
            return client.request(method, path, json=body).raise_for_status().json()

    def new_key(self, tenant: str, **limits: Any) -> str:
        """A key of a new tenant."""
        self.admin("POST", "tenants", {"name": tenant, "limits": limits})
        return str(self.admin("POST", f"tenants/{tenant}/keys", {})["secret"])

    def running(self) -> int:
        """Requests that are there now."""
        return len(self.admin("GET", "requests")["items"])


@contextmanager
def real_server(models: dict[str, Path]) -> Iterator[RealServer]:
    """Serves these models, by name, on free ports; ends with the block."""
    with tempfile.TemporaryDirectory(prefix="bd-") as folder:
        state_dir = Path(folder)
        for name, path in models.items():
            _command(state_dir, "models", "import", str(path), "--name", name, "--link")
        log_path = state_dir / "serve.log"
        with log_path.open("w") as log:
            flags = ("serve", "--state-dir", folder, "--port", "0", "--grpc-port", "0")
            process = subprocess.Popen(
                [sys.executable, "-m", "daemon.cli", *flags], stdout=log, stderr=log, cwd=ROOT, env=_environment()
            )
        try:
            yield _ready(state_dir, process, log_path, set(models))
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _ready(state_dir: Path, process: subprocess.Popen[bytes], log_path: Path, models: set[str]) -> RealServer:
    until = time.monotonic() + STARTED_WITHIN_S
    server = RealServer(state_dir, "", "", "")
    while True:
        assert process.poll() is None, log_path.read_text()
        assert time.monotonic() < until, log_path.read_text()
        if server.reachable():
            status = server.admin("GET", "status")
            if set(status["models"]) >= models:
                break
        time.sleep(0.05)
    key = server.new_key("demo")
    return RealServer(state_dir, status["http"], status["grpc"], key)


def _command(state_dir: Path, *argv: str) -> None:
    command = [sys.executable, "-m", "daemon.cli", *argv, "--state-dir", str(state_dir)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, cwd=ROOT, env=_environment(), check=False
    )
    assert done.returncode == 0, done.stderr


def _environment() -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("BAYARD_", "XDG_"))}
    # Each has a folder of its own: packed weights that it kept no second start would find.
    return {**kept, "OMP_NUM_THREADS": "2", "BAYARD_WORKERS_PACKED_BYTES": "0"}
