"""A served gRPC API around a fake engine."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from grpc import aio

from daemon.api.grpc.server import build_server
from tests.fakes.fake_engine import FakeEngine
from tests.fakes.fake_services import FakeServices, add_replica

EMBEDDER = "embedder"


@pytest.fixture
async def channel(services: FakeServices) -> AsyncIterator[aio.Channel]:
    server = build_server(services)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with aio.insecure_channel(f"127.0.0.1:{port}") as made:
        yield made
    await server.stop(None)


@pytest.fixture
def embedder(services: FakeServices) -> FakeEngine:
    """A model of eight dimensions beside the one that writes."""
    engine = FakeEngine()
    add_replica(services.router, EMBEDDER, engine, max_context_tokens=64, dimensions=engine.dimensions)
    return engine


@pytest.fixture
def keyed(services: FakeServices) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {services.key}"),)
