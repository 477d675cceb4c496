"""One daemon for the session, serving the small real models, with a key."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.daemon.conftest import MODEL, Daemon
from tests.fakes.foreign_clients import (
    bear_with_clients,
    clients_of_others_close_late,  # noqa: F401 - a fixture
    nothing_of_other_clients_is_left,  # noqa: F401 - a fixture
)

ENCODER = "minilm"


@dataclass(frozen=True)
class Served:
    """url is of HTTP, target of gRPC. encoder: None where there is no encoder to serve."""

    daemon: Daemon
    url: str
    target: str
    key: str
    encoder: str | None

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self.key}"),)

    def idle(self, within_s: float = 2.0) -> float:
        """Seconds until nothing of any request is left, in the daemon or in a worker."""
        return idle(self.daemon, within_s)


def idle(daemon: Daemon, within_s: float) -> float:
    """Fails unless, within so long, there is no request and no page in use; workers tell their state twice a second."""

    def is_idle() -> bool:
        held = ("requests_running", "requests_waiting", "kv_pages_active")
        workers = daemon.admin("workers")["items"]
        return not daemon.admin("requests")["items"] and not any(one[key] for one in workers for key in held)

    return daemon.until(is_idle, within_s)


@pytest.fixture(scope="session")
def served(smollm_path: Path, request: pytest.FixtureRequest) -> Iterator[Served]:
    with tempfile.TemporaryDirectory(prefix="bd-") as folder:
        daemon = Daemon(Path(folder), {"BAYARD_LIMITS_MAX_QUEUE": "1000"})  # a crowd may come
        daemon.command("models", "import", str(smollm_path), "--name", MODEL, "--link")
        encoder = _encoder(request)
        if encoder is not None:
            daemon.command("models", "import", str(encoder), "--name", ENCODER, "--link")
        daemon.command("tenants", "create", "demo")
        done = daemon.command("keys", "create", "--tenant", "demo")
        found = re.search(r"bk_live_\S+", done.stdout)
        assert found is not None, done.stdout
        try:
            daemon.start()
            wanted = [MODEL] if encoder is None else sorted([ENCODER, MODEL])
            daemon.until(lambda: daemon.admin("status")["models"] == wanted, 60.0)
            status = daemon.admin("status")
            yield Served(daemon, status["http"], status["grpc"], found.group(), ENCODER if encoder else None)
        finally:
            daemon.stop()


@pytest.fixture(scope="session")
def encoder(served: Served) -> str:
    if served.encoder is None:
        pytest.skip("there is no encoder: put its folder into .cache/models, or set BAYARD_TEST_ENCODER")
    return served.encoder


def _encoder(request: pytest.FixtureRequest) -> Path | None:
    try:
        found: Path = request.getfixturevalue("minilm_path")
    except pytest.skip.Exception:
        return None
    return found


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    bear_with_clients(items, Path(__file__).parent)
