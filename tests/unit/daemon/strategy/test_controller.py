"""The controller against a fake supervisor and a clock that tests move."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta

import pytest

from daemon.events import EventLog
from daemon.planning.profile import Profile
from daemon.planning.strategy import Strategy
from daemon.settings import Settings
from daemon.store.session import Store
from daemon.strategy.controller import PlanController
from daemon.strategy.plans import Plans, SavedPlan
from daemon.strategy.rules import Rules
from daemon.workers.states import WorkerState
from engine.errors import NotFound, WorkerLost
from tests.fakes.strategy_parts import FakeWorkers

MakeProfile = Callable[..., Profile]
Save = Callable[..., SavedPlan]


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2026, 6, 1, 6, 0, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def workers() -> FakeWorkers:
    return FakeWorkers()


@pytest.fixture
def rules(store: Store, events: EventLog, settings: Settings, clock: Clock) -> Rules:
    made = Rules(store, events, settings, clock)
    made.timezone = "UTC"
    return made


@pytest.fixture
def controller(plans: Plans, rules: Rules, workers: FakeWorkers, events: EventLog, clock: Clock) -> PlanController:
    return PlanController(plans, rules, workers, events, clock=clock)


async def settle(controller: PlanController, turns: int = 3) -> None:
    for _ in range(turns):
        await controller.reconcile("test")


def reasons(events: EventLog, kind: str) -> list[str]:
    return [event.reason for event in events.recent() if event.kind == kind]


async def test_no_plan_wants_nothing_and_is_converged(controller: PlanController, workers: FakeWorkers) -> None:
    await settle(controller)
    view = controller.view()
    assert (view.plan, view.converged, view.problem, workers.calls) == (None, True, None, [])


async def test_default_plan_is_started_once_and_left_alone(
    controller: PlanController, workers: FakeWorkers, plans: Plans, profile: MakeProfile, saved: Save
) -> None:
    saved("latency", profile())
    plans.set_default("latency", "test")
    await settle(controller)
    assert workers.calls == [("want", "small")]
    assert workers.configs["small"].max_context_tokens == 4096
    assert controller.view().converged


async def test_rule_switches_knobs_in_place_and_back_with_reasons(
    controller: PlanController,
    workers: FakeWorkers,
    plans: Plans,
    rules: Rules,
    events: EventLog,
    clock: Clock,
    profile: MakeProfile,
    saved: Save,
) -> None:
    saved("latency", profile())
    saved("throughput", profile(strategy=Strategy.THROUGHPUT))
    plans.set_default("throughput", "test")
    rules.add("day", "0 8 * * *", 3600, "latency")
    few = plans.get("latency").profiles[0].knobs
    many = plans.get("throughput").profiles[0].knobs
    assert few != many
    await settle(controller)
    assert workers.configs["small"].knobs == many
    clock.now += timedelta(hours=2, seconds=1)
    await settle(controller)
    assert workers.configs["small"].knobs == few
    clock.now += timedelta(hours=1)
    await settle(controller)
    assert workers.configs["small"].knobs == many
    assert workers.calls == [("want", "small"), ("knobs", "small"), ("knobs", "small")]
    moves = [event for event in events.recent() if event.fields.get("move") == "knobs"]
    assert len(moves) == 2
    assert "rule day" in moves[0].reason
    assert [
        e.to_state for e in events.recent() if e.kind == "plan" and e.reason.startswith(("rule", "no schedule"))
    ] == [
        "throughput",
        "latency",
        "throughput",
    ]


async def test_clock_that_jumps_days_converges_to_the_same_state(
    controller: PlanController,
    workers: FakeWorkers,
    plans: Plans,
    rules: Rules,
    clock: Clock,
    profile: MakeProfile,
    saved: Save,
) -> None:
    saved("latency", profile())
    saved("throughput", profile(strategy=Strategy.THROUGHPUT))
    plans.set_default("throughput", "test")
    rules.add("day", "0 8 * * *", 3600, "latency")
    for jump in (timedelta(days=40, hours=2, minutes=30), timedelta(days=-60), timedelta(days=400)):
        clock.now += jump
        await settle(controller)
        wanted = controller.view().plan
        assert wanted is not None
        assert workers.configs["small"].knobs == plans.get(wanted).profiles[0].knobs
        assert controller.view().converged


async def test_another_shape_is_asked_of_the_supervisor_once(
    controller: PlanController, workers: FakeWorkers, plans: Plans, profile: MakeProfile, saved: Save
) -> None:
    saved("a", profile())
    saved("b", profile(context=8192))
    plans.set_default("a", "test")
    await settle(controller)
    plans.set_default("b", "test")
    await settle(controller)
    assert workers.calls == [("want", "small"), ("want", "small")]
    assert workers.configs["small"].max_context_tokens == 8192


async def test_model_that_another_plan_loads_sleeps_and_one_that_none_loads_ends(
    controller: PlanController, workers: FakeWorkers, plans: Plans, events: EventLog, profile: MakeProfile, saved: Save
) -> None:
    saved("both", profile(), profile("other"))
    saved("one", profile())
    plans.set_default("both", "test")
    await settle(controller)
    assert set(workers.configs) == {"small", "other"}
    plans.set_default("one", "test")
    await settle(controller)
    assert workers.awake == {"small"}
    assert set(workers.configs) == {"small", "other"}
    assert any("does not load it" in reason for reason in reasons(events, "worker"))
    plans.set_default("both", "test")
    await settle(controller)
    assert workers.awake == {"small", "other"}
    assert ("wake", "other") in workers.calls
    plans.set_default("one", "test")
    await settle(controller)
    plans.delete("both")
    await settle(controller)
    assert set(workers.configs) == {"small"}


async def test_sleeper_that_somebody_wakes_or_whose_process_ends_is_no_rest(
    controller: PlanController, workers: FakeWorkers, plans: Plans, profile: MakeProfile, saved: Save
) -> None:
    saved("both", profile(), profile("other"))
    saved("one", profile())
    plans.set_default("both", "test")
    await settle(controller)
    plans.set_default("one", "test")
    await settle(controller)
    await workers.wake("other", "an operator")
    await settle(controller)
    assert workers.states["other"] is WorkerState.SLEEPING, "the plan in force does not load it: it sleeps again"
    del workers.pids["other"]
    await settle(controller)
    assert set(workers.configs) == {"small"}


async def test_worker_not_ready_is_not_converged(
    controller: PlanController, workers: FakeWorkers, plans: Plans, profile: MakeProfile, saved: Save
) -> None:
    saved("latency", profile())
    plans.set_default("latency", "test")
    workers.states["small"] = WorkerState.STARTING
    await settle(controller)
    assert not controller.view().converged


async def test_failure_is_told_once_and_ends_when_it_is_over(
    controller: PlanController, workers: FakeWorkers, plans: Plans, events: EventLog, profile: MakeProfile, saved: Save
) -> None:
    saved("latency", profile())
    plans.set_default("latency", "test")
    workers.fail_with = WorkerLost("the device is gone", "look at it")
    await settle(controller, 4)
    assert controller.view().problem == "the device is gone look at it"
    workers.fail_with = None
    await settle(controller)
    assert controller.view().problem is None
    assert controller.view().converged
    assert [e.to_state for e in events.recent() if e.kind == "plan" and e.to_state in ("failing", "converging")] == [
        "failing",
        "converging",
    ]


async def test_one_model_that_cannot_start_does_not_hold_up_another(
    controller: PlanController, workers: FakeWorkers, plans: Plans, profile: MakeProfile, saved: Save
) -> None:
    saved("both", profile("broken"), profile("small"))
    plans.set_default("both", "test")
    workers.broken = {"broken"}
    await settle(controller)
    assert set(workers.configs) == {"small"}
    assert "broken" in (controller.view().problem or "")


async def test_foreign_exception_ends_the_turn_not_the_ticker(
    controller: PlanController, workers: FakeWorkers, plans: Plans, profile: MakeProfile, saved: Save
) -> None:
    saved("latency", profile())
    plans.set_default("latency", "test")
    workers.fail_with = RuntimeError("boom")
    await settle(controller)
    assert controller.view().problem == "RuntimeError: boom"


async def test_activate_without_rules_sets_the_default(
    controller: PlanController, plans: Plans, profile: MakeProfile, saved: Save
) -> None:
    saved("a", profile())
    saved("b", profile())
    plans.set_default("a", "test")
    view = await controller.activate("b", None, "ana")
    assert (view.plan, view.default, view.override) == ("b", "b", None)


async def test_activate_for_a_time_overrides_rules_and_ends_by_itself(
    controller: PlanController, plans: Plans, rules: Rules, clock: Clock, profile: MakeProfile, saved: Save
) -> None:
    saved("a", profile())
    saved("b", profile())
    plans.set_default("a", "test")
    rules.add("day", "0 8 * * *", 3600, "a")
    view = await controller.activate("b", 7200.0, "ana", "a fair")
    assert view.plan == "b"
    assert view.until_at == clock.now + timedelta(hours=2)
    assert view.next_plan == "a"
    clock.now += timedelta(hours=2)
    assert controller.view().plan == "a"


async def test_activate_among_rules_lasts_until_released(
    controller: PlanController, plans: Plans, rules: Rules, clock: Clock, profile: MakeProfile, saved: Save
) -> None:
    saved("a", profile())
    saved("b", profile())
    rules.add("day", "0 8 * * *", 3600, "a")
    await controller.activate("b", None, "ana")
    clock.now += timedelta(days=30)
    assert controller.view().plan == "b"
    assert (await controller.release("ana")).override is None


async def test_activate_unknown_plan_names_the_nearest(
    controller: PlanController, profile: MakeProfile, saved: Save
) -> None:
    saved("latency", profile())
    with pytest.raises(NotFound, match="Did you mean latency"):
        await controller.activate("latenzy", None, "ana")


async def test_unload_waits_until_the_worker_is_gone(
    controller: PlanController, workers: FakeWorkers, plans: Plans, profile: MakeProfile, saved: Save
) -> None:
    plan = saved("both", profile(), profile("other"))
    plans.set_default("both", "test")
    await settle(controller)
    plans.save(plan.without_model("other"), "test")
    await controller.unload("other", ["both"])
    assert set(workers.configs) == {"small"}


async def test_ticker_reconciles_by_itself_and_stops(
    plans: Plans, rules: Rules, workers: FakeWorkers, events: EventLog, profile: MakeProfile, saved: Save
) -> None:
    controller = PlanController(plans, rules, workers, events, period_s=0.05)
    await controller.start()
    saved("latency", profile())
    await asyncio.to_thread(plans.set_default, "latency", "test")
    async with asyncio.timeout(5):
        while not workers.configs:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    await controller.stop()
    calls = len(workers.calls)
    await asyncio.sleep(0.2)
    assert len(workers.calls) == calls


async def test_timeline_of_a_day_names_rule_and_plan(
    controller: PlanController, plans: Plans, rules: Rules, profile: MakeProfile, saved: Save
) -> None:
    saved("a", profile())
    saved("b", profile())
    plans.set_default("b", "test")
    rules.add("day", "0 8 * * *", 3600, "a")
    segments = controller.timeline(date(2026, 6, 2))
    assert [(s.begins_at.hour, s.plan, s.rule) for s in segments] == [(0, "b", None), (8, "a", "day"), (9, "b", None)]
