"""Plans over a real store, with models that exist by description alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from daemon.events import EventLog
from daemon.planning.install import EngineInstall
from daemon.planning.machine_budgets import budgets_of
from daemon.planning.plan import Planner, Request
from daemon.planning.profile import Profile
from daemon.planning.strategy import Strategy
from daemon.settings import Settings
from daemon.store.base import utc_now
from daemon.store.session import Store
from daemon.strategy.plans import OPERATOR, Plans, SavedPlan
from daemon.strategy.rules import Rules
from tests.fakes.planned_models import cpu_machine, made_spec


@pytest.fixture
def events(store: Store) -> EventLog:
    return EventLog(store)


@pytest.fixture
def plans(store: Store, events: EventLog) -> Plans:
    return Plans(store, events)


@pytest.fixture
def rules(store: Store, events: EventLog, settings: Settings) -> Rules:
    return Rules(store, events, settings)


@pytest.fixture
def profile() -> Callable[..., Profile]:
    """A profile of a small made-up model on a CPU."""

    def make(model: str = "small", strategy: Strategy = Strategy.LATENCY, context: int = 4096) -> Profile:
        spec = made_spec(model, hidden=256, layers=2, heads=4, kv_heads=2, mlp=512, vocab=1000, kind="F32")
        planner = Planner(budgets_of(cpu_machine(8), EngineInstall.full()))
        request = Request(strategy, context_tokens=context, kv_tokens=32_768)
        chosen = planner.answer(spec, request).chosen
        assert chosen is not None
        return chosen

    return make


@pytest.fixture
def saved(plans: Plans) -> Callable[..., SavedPlan]:
    def save(name: str, *profiles: Profile) -> SavedPlan:
        now = utc_now()
        return plans.save(SavedPlan(name, profiles[0].strategy, OPERATOR, profiles, "", now, now), "a test")

    return save
