"""One daemon for the session, serving the small real models, with a key."""

from __future__ import annotations

import asyncio
import gc
import re
import socket
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.daemon.conftest import MODEL, Daemon

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


@pytest.fixture(autouse=True)
def clients_of_others_close_late() -> Iterator[None]:
    """Some client packages leave sockets to the collector: here, not in the middle of somebody else's test."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(scope="module", autouse=True)
def nothing_of_other_clients_is_left() -> Iterator[None]:
    """Close what client packages keep open in caches of theirs: the collector would warn in somebody else's test."""
    kinds = (socket.socket, asyncio.AbstractEventLoop)
    before = {id(thing) for thing in gc.get_objects() if issubclass(type(thing), kinds)}
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
        for thing in gc.get_objects():
            if not issubclass(type(thing), kinds) or id(thing) in before:
                continue
            if isinstance(thing, socket.socket) or not (thing.is_running() or thing.is_closed()):
                thing.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))
