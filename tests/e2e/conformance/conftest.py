"""One real server with the small model for all conformance cases; each client package is optional."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.fakes.foreign_clients import (
    bear_with_clients,
    clients_of_others_close_late,  # noqa: F401 - a fixture
    nothing_of_other_clients_is_left,  # noqa: F401 - a fixture
)
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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    bear_with_clients(items, Path(__file__).parent)
