"""One real server with the small model for all conformance cases; each client package is optional."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import warnings
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.fakes.real_server import RealServer, real_server

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # LiteLLM fetches a price list otherwise

MODEL = "smollm"


@pytest.fixture(scope="session")
def server(smollm_path: Path) -> Iterator[RealServer]:
    with real_server({MODEL: smollm_path}) as made:
        yield made


@pytest.fixture(scope="session")
def http(server: RealServer) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {server.key}"}
    with httpx.Client(base_url=server.url, headers=headers, timeout=60, trust_env=False) as client:
        yield client


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
