"""The admin API's plans and schedule under inputs beyond all bounds: refused with a reason, never an internal error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from daemon.planning.install import EngineInstall
from daemon.planning.machine_budgets import budgets_of
from daemon.planning.measurements import Measurements
from daemon.planning.plan import Planner, Request
from daemon.planning.profile import Profile
from daemon.planning.strategy import Strategy
from daemon.store.base import utc_now
from daemon.strategy.desk import PlanningDesk
from daemon.strategy.plans import AUTO, SavedPlan
from tests.fakes.fake_admin import AdminParts, admin_socket
from tests.fakes.fake_services import fake_services
from tests.fakes.planned_models import cpu_machine, made_spec

LONG = "x" * 10_000
DEEP = b"[" * 100_000


@pytest.fixture
async def served(short_dir: Path) -> AsyncIterator[tuple[AdminParts, httpx.AsyncClient]]:
    async with (
        fake_services(short_dir) as services,
        admin_socket(services, short_dir / "admin.sock") as (parts, client),
    ):
        parts.desk = PlanningDesk(
            parts.settings,
            parts.events,
            parts.models,
            parts.plans,
            Measurements(parts.store),
            detect=lambda: cpu_machine(16),
            install=EngineInstall.full(),
        )
        plan = SavedPlan("p", Strategy.LATENCY, AUTO, (profile(),), "", utc_now(), utc_now())
        await asyncio.to_thread(parts.plans.save, plan, "a test")
        await asyncio.to_thread(parts.plans.set_default, "p", "test")
        parts.supervisor.want = wanted  # type: ignore[method-assign]
        yield parts, client


def profile() -> Profile:
    spec = made_spec("small", hidden=256, layers=2, heads=4, kv_heads=2, mlp=512, vocab=1000, kind="F32")
    chosen = Planner(budgets_of(cpu_machine(8), EngineInstall.full())).answer(spec, Request(Strategy.LATENCY)).chosen
    assert chosen is not None
    return chosen


async def wanted(*_: object, **__: object) -> None:
    """A worker of the plan: none is started."""


async def test_input_beyond_all_bounds_is_refused_and_not_an_internal_error(
    served: tuple[AdminParts, httpx.AsyncClient], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)  # a name is never a file beside the daemon
    deep: Any = []
    for _ in range(500):
        deep = [deep]
    asked: list[tuple[str, str, dict[str, Any], int]] = [
        ("GET", "schedule/timeline?date=9999-12-31", {}, 400),
        ("GET", "schedule/timeline?date=0001-01-01", {}, 400),
        ("POST", "schedule/preview", {"json": {"day": "9999-12-31"}}, 400),
        ("GET", "usage?until=0001-01-01T00:00:00Z", {}, 400),
        ("GET", "usage?until=9999-12-31T23:59:59-12:00&since=9999-12-31T00:00:00-12:00", {}, 400),
        ("PUT", "plans/p/on-demand", {"json": {"model": LONG}}, 404),
        ("PUT", "plans/p/on-demand", {"json": {"model": ""}}, 404),
        ("PUT", "plans/p/on-demand", {"json": {"model": "."}}, 404),
        ("POST", "plans/preview", {"json": {"target": LONG}}, 404),
        ("POST", "plans/preview", {"json": {"target": ""}}, 404),
        ("POST", "plans/preview", {"json": {"target": "."}}, 404),
        ("POST", "plans/preview", {"json": {"target": "/" + LONG}}, 404),
        ("POST", "plans/preview", {"json": {"target": "/dev/zero"}}, 400),
        ("POST", "plans/preview", {"json": {"target": "m", "beside": [{"model": deep}]}}, 400),
        ("POST", "plans/preview", {"content": DEEP}, 400),
        ("PATCH", "schedule/rules/r", {"content": DEEP}, 400),
        ("PUT", f"plans/{LONG}", {"json": {"strategy": "latency", "models": ["m"]}}, 404),
        ("PUT", "plans/p", {"json": {"strategy": "latency", "models": ["m"]}}, 400),
        ("GET", f"plans/{LONG}", {}, 404),
    ]
    for method, path, what, status in asked:
        answer = await served[1].request(method, path, **what, headers={"content-type": "application/json"})
        assert answer.status_code == status, (method, path[:60], answer.text[:300])
        assert len(answer.text) < 1000, (method, path[:60])


async def test_hold_for_a_time_says_when_it_ends(served: tuple[AdminParts, httpx.AsyncClient]) -> None:
    held = (await served[1].post("schedule/hold", json={"for_s": 300})).json()
    (override,) = (await served[1].get("schedule/overrides")).json()["items"]
    assert held["until_at"] == override["ends_at"]
    assert (await served[1].get("schedule")).json()["until_at"] == override["ends_at"]
    told = (await served[1].post("schedule/hold?dry_run=true")).json()["consequences"]
    assert told == ["plan p stays", "no change is near"]
