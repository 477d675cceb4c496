"""A database that cannot be written: requests are served, the reason is told, and nothing is lost once it can be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import httpx
import pytest

from daemon.api.http import build_app
from daemon.store.base import utc_now
from daemon.store.session import Store
from daemon.tenants.usage import read_usage
from engine.errors import StoreError
from tests.fakes.fake_services import MODEL, TESTER, FakeServices, fake_services, http_server

BODY = {"model": MODEL, "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
async def services(tmp_path: Path) -> AsyncIterator[FakeServices]:
    async with fake_services(tmp_path) as made:
        yield made


def pragma(store: Store, statement: str) -> None:
    """On the writer's one connection, outside any transaction."""
    connection = store._writer_engine.raw_connection()
    try:
        connection.cursor().execute(statement)
    finally:
        connection.close()


async def fill(services: FakeServices) -> None:
    """Raises: StoreError before long"""
    for at in range(200):
        await services.tenants.create_tenant(TESTER, f"{'x' * 50}{at}")


FAULTS = {
    "full": ("PRAGMA max_page_count = 1", "PRAGMA max_page_count = 1000000", "Free space on the disk"),
    "read-only": ("PRAGMA query_only = ON", "PRAGMA query_only = OFF", "owner and mode"),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_requests_go_on_and_usage_is_settled_once_it_can_be(services: FakeServices, fault: str) -> None:
    begin, end, hint = FAULTS[fault]
    headers = {"authorization": f"Bearer {services.key}"}
    async with (
        http_server(build_app(services)) as url,
        httpx.AsyncClient(base_url=url, headers=headers, trust_env=False) as http,
    ):
        await asyncio.to_thread(pragma, services.store, begin)
        with pytest.raises(StoreError) as caught:
            await fill(services)
        assert hint in caught.value.hint
        for _ in range(3):
            assert (await http.post("/v1/chat/completions", json=BODY)).status_code == 200
        async with asyncio.timeout(10):  # a full database may still have room for one small row
            while fault == "read-only" and services.tenants.usage.problem is None:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert (await http.get("/v1/models")).status_code == 200  # keys are known from memory
        await asyncio.to_thread(pragma, services.store, end)
        await services.tenants.usage.settle()
        async with asyncio.timeout(10):
            while services.tenants.usage.problem is not None:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    now = utc_now() + timedelta(minutes=1)
    rows = await services.store.read(lambda session: read_usage(session, now - timedelta(hours=1), now))
    assert sum(row.requests for row in rows) == 3
    assert services.metrics.usage_unrecorded._value.get() == 0
    await services.tenants.create_tenant(TESTER, "after")


async def test_clock_that_jumps_loses_no_usage_and_no_key(
    services: FakeServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    from daemon.tenants.usage import UsageSum

    real = utc_now()
    principal = services.tenants.identify(services.key)
    for hours in (0, 24 * 400, -5, 0):
        moved = real + timedelta(hours=hours)
        monkeypatch.setattr("daemon.tenants.usage.utc_now", lambda moved=moved: moved)
        monkeypatch.setattr("daemon.tenants.service.utc_now", lambda moved=moved: moved)
        services.tenants.usage.add(principal, "m", UsageSum(requests=1))
        assert services.tenants.identify(services.key) == principal
        await services.tenants.usage.settle()
    rows = await services.store.read(
        lambda session: read_usage(session, real - timedelta(days=1), real + timedelta(days=500))
    )
    assert sum(row.requests for row in rows) == 4
