"""Models that a request would load: the box is ready for them, and lists them without loading them."""

from __future__ import annotations

from dataclasses import replace

import httpx
import pytest

from daemon.workers.states import WorkerState
from tests.fakes.fake_services import MODEL, FakeServices
from tests.fakes.strategy_parts import worker_view

ASKED: list[str] = []


@pytest.fixture
def resting(services: FakeServices) -> FakeServices:
    """Nothing is loaded; two models are when they are asked for."""
    ASKED.clear()
    services.router._replicas.clear()
    services.router.offers = lambda: {"one": 4096, "two": 2048}
    services.router.aliases = lambda: {"chat": "one"}
    services.router.ask = lambda model: not ASKED.append(model)  # type: ignore[func-returns-value]
    return services


async def test_box_with_on_demand_models_alone_is_ready(http: httpx.AsyncClient, resting: FakeServices) -> None:
    assert (await http.get("/readyz")).status_code == 200
    loading = worker_view("one", None)
    resting.supervisor.shown = [loading]
    assert (await http.get("/readyz")).status_code == 200, "not while one of them is loaded, either"
    resting.router.offers = dict
    assert (await http.get("/readyz")).status_code == 503


async def test_model_that_is_always_loaded_is_waited_for(http: httpx.AsyncClient, resting: FakeServices) -> None:
    resting.supervisor.shown = [replace(worker_view("always", None), state=WorkerState.STARTING)]
    answer = await http.get("/readyz")
    assert answer.status_code == 503
    assert "always is starting" in answer.text


async def test_on_demand_models_are_listed_and_not_loaded(http: httpx.AsyncClient, resting: FakeServices) -> None:
    listed = {item["id"]: item["max_model_len"] for item in (await http.get("/v1/models")).json()["data"]}
    assert listed == {"one": 4096, "two": 2048, "chat": 4096}
    assert (await http.get("/v1/models/two")).json()["max_model_len"] == 2048
    assert (await http.get(f"/v1/models/{MODEL}")).status_code == 404
    assert ASKED == []
