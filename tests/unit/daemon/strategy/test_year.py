"""A year of schedules: every change of plan once, none missed, through restarts, clock jumps and daylight saving."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.events import EventLog
from daemon.planning.profile import Profile
from daemon.planning.strategy import Strategy
from daemon.settings import Settings
from daemon.store.session import Store
from daemon.strategy.controller import PlanController
from daemon.strategy.plans import Plans, SavedPlan
from daemon.strategy.rules import Rules
from daemon.strategy.schedule import Rule, plan_at, timeline
from tests.fakes.strategy_parts import FakeWorkers

BEGIN, END = datetime(2026, 1, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC)

ONE_RULE = st.builds(
    lambda minute, hour, days, hours, plan, zone, without: (
        f"{minute} {hour} * * {days}",
        hours * 3600,
        plan,
        zone,
        True,
        tuple(sorted(without)),
    ),
    st.integers(0, 59),
    st.integers(0, 23),
    st.sampled_from(["*", "mon-fri", "sat,sun", "3"]),
    st.integers(1, 30),
    st.sampled_from(["day", "night", "fair"]),
    st.sampled_from(["Europe/Berlin", "America/New_York", "Asia/Shanghai", "Australia/Lord_Howe"]),
    st.sets(st.dates(BEGIN.date(), END.date()), max_size=40),
)
RULES = st.lists(ONE_RULE, min_size=1, max_size=3).map(
    lambda found: [Rule(n, f"r{n}", *one) for n, one in enumerate(found, 1)]
)


@settings(max_examples=4, deadline=None)
@given(RULES)
def test_year_has_no_gap_no_doubled_switch_and_no_start_without_effect(rules: list[Rule]) -> None:
    segments = timeline(rules, BEGIN, END, "rest")
    assert segments[0][0] == BEGIN
    assert segments[-1][1] == END
    for (_, ended, before), (begun, _, after) in pairwise(segments):
        assert ended == begun
        assert (before.plan, before.rule) != (after.plan, after.rule)
    for begun, ended, decision in segments[:: max(1, len(segments) // 60)]:
        for moment in (begun, ended - timedelta(microseconds=1)):
            assert plan_at(rules, moment, "rest", look_ahead=False).plan == decision.plan
    for rule in rules:
        for start in list(rule.starts.between(BEGIN, END))[::7]:
            assert plan_at(rules, start, "rest", look_ahead=False).since_at == start  # the latest start wins


@pytest.fixture
def clocked(store: Store, events: EventLog, settings: Settings) -> tuple[Rules, list[datetime]]:
    now = [BEGIN]
    return Rules(store, events, settings, lambda: now[0]), now


async def test_controller_follows_a_year_through_restarts_and_jumps(
    plans: Plans,
    clocked: tuple[Rules, list[datetime]],
    events: EventLog,
    profile: Callable[..., Profile],
    saved: Callable[..., SavedPlan],
) -> None:
    rules, now = clocked
    knobs = {}
    for name, strategy in (("day", Strategy.LATENCY), ("night", Strategy.THROUGHPUT), ("fair", Strategy.BALANCED)):
        knobs[name] = saved(name, profile(strategy=strategy)).profiles[0].knobs
    plans.set_default("night", "test")
    holidays = [date(2026, 1, 1), date(2026, 12, 24), date(2026, 12, 31)]
    rules.add(
        "week", "30 2 * * mon,thu", 6 * 3600, "day", "Europe/Berlin", holidays
    )  # half past two is skipped and repeated
    rules.add("sunday", "30 2 * * sun", 3 * 3600, "fair", "Europe/Berlin")
    workers, chance = FakeWorkers(), random.Random(7)

    def controller() -> PlanController:
        return PlanController(plans, rules, workers, events, clock=lambda: now[0])

    running = controller()
    segments = timeline(rules.all(), BEGIN, END, "night")
    changes = 0
    before: str | None = None
    for begun, ended, decision in segments:
        now[0] = begun + (ended - begun) * chance.uniform(0.0, 0.9)
        if chance.random() < 0.2:
            running = controller()  # as after a kill: nothing is remembered
        if chance.random() < 0.1:  # the clock is wrong for a while
            right = now[0]
            now[0] = right + timedelta(days=chance.choice([-40, -1, 1, 300]))
            await running.reconcile("jump")
            now[0] = right
        calls = len(workers.calls)
        await running.reconcile("tick")
        assert decision.plan is not None
        assert workers.configs["small"].knobs == knobs[decision.plan]
        moved = len(workers.calls) - calls
        await running.reconcile("tick")
        assert len(workers.calls) - calls == moved <= 1  # once, not twice
        changes += decision.plan != before
        before = decision.plan
    assert changes == len(segments) > 250
