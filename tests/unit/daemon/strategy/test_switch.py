"""Switches of shape against a fake supervisor: beside, drain-first, failed and called off."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import msgspec
import pytest

from daemon.events import EventLog
from daemon.planning.live_bounds import LiveBounds
from daemon.planning.profile import Profile
from daemon.planning.strategy import Strategy
from daemon.strategy.backlog import LIMIT_S
from daemon.strategy.controller import PlanController
from daemon.strategy.gap import predicted_gap_s
from daemon.strategy.plans import Plans, SavedPlan
from daemon.strategy.room import RoomAnswer
from daemon.strategy.rules import Rules
from daemon.workers.states import WorkerState
from daemon.workers.view import WorkerView
from engine.messages import WorkerReady, WorkerStats
from tests.fakes.strategy_parts import FakeWorkers

MakeProfile = Callable[..., Profile]
Save = Callable[..., SavedPlan]


class Room:
    def __init__(self) -> None:
        self.fits = True
        self.fits_beside_a_sleeper = False

    def __call__(
        self, profile: Profile, views: Sequence[WorkerView], promised: Mapping[str, int], returned_bytes: int = 0
    ) -> RoomAnswer:
        freed = self.fits_beside_a_sleeper and all(view.state is WorkerState.SLEEPING for view in views)
        return RoomAnswer(self.fits or freed, "as the test says")


class Bench:
    def __init__(self, plans: Plans, rules: Rules, events: EventLog) -> None:
        self.plans, self.events = plans, events
        self.workers, self.room, self.now = FakeWorkers(), Room(), 100.0
        self.controller = PlanController(plans, rules, self.workers, events, room=self.room, mono=lambda: self.now)

    async def turn(self, times: int = 1) -> None:
        for _ in range(times):
            self.now += 3.0
            await self.controller.reconcile("test")

    def contexts(self) -> dict[str, int]:
        """Of those awake."""
        return {name: self.workers.configs[name].max_context_tokens for name in self.workers.awake}

    def switches(self) -> list[str]:
        return [str(event.to_state) for event in self.events.recent() if event.kind == "switch"]


@pytest.fixture
async def bench(plans: Plans, rules: Rules, events: EventLog, profile: MakeProfile, saved: Save) -> Bench:
    saved("a", profile())
    saved("b", profile(context=8192))
    plans.set_default("a", "test")
    made = Bench(plans, rules, events)
    await made.turn(2)
    return made


async def test_new_shape_that_fits_beside_is_proven_before_the_old_leaves(bench: Bench) -> None:
    bench.workers.states["small@2"] = WorkerState.STARTING
    bench.plans.set_default("b", "test")
    await bench.turn(2)
    assert set(bench.workers.configs) == {"small", "small@2"}
    assert bench.workers.proven == {"small@2"}
    assert bench.switches() == ["beside"]
    bench.workers.states["small@2"] = WorkerState.READY
    await bench.turn(3)
    assert bench.workers.awake == {"small@2"}
    assert bench.workers.configs["small@2"].max_context_tokens == 8192
    assert bench.switches() == ["beside", "switched"]
    assert bench.controller.view().converged
    pid = bench.workers.pids["small"]
    bench.plans.set_default("a", "test")
    await bench.turn(4)
    assert bench.contexts() == {"small": 4096}
    assert bench.workers.pids["small"] == pid, "it was woken, not started anew"
    assert bench.workers.proven == {"small", "small@2"}
    assert bench.switches() == ["beside", "switched"] * 2


async def test_worker_that_fails_beside_is_taken_away_and_the_old_goes_on(bench: Bench) -> None:
    bench.workers.states["small@2"] = WorkerState.STARTING
    bench.plans.set_default("b", "test")
    await bench.turn()
    bench.workers.states["small@2"] = WorkerState.BACKOFF
    await bench.turn(3)
    assert bench.contexts() == {"small": 4096}
    assert bench.switches() == ["beside", "rolled-back"]
    view = bench.controller.view()
    assert not view.converged
    assert "the worker from before goes on" in (view.problem or "")
    await bench.turn(10)
    assert bench.switches() == ["beside", "rolled-back"]
    bench.now += 600
    bench.workers.states["small@2"] = WorkerState.READY
    await bench.turn(3)
    assert bench.switches() == ["beside", "rolled-back", "beside", "switched"]


async def test_no_room_drains_first_with_the_gap_predicted(bench: Bench) -> None:
    bench.room.fits = False
    bench.plans.set_default("b", "test")
    await bench.turn(3)
    assert bench.contexts() == {"small": 8192}
    assert bench.switches() == ["drain-first", "switched"]
    begun = next(event for event in bench.events.recent() if event.to_state == "drain-first")
    assert begun.fields["predicted_gap_s"] > 0
    assert "a gap of about" in begun.reason


async def test_where_a_sleeper_leaves_room_the_old_sleeps_first_and_is_woken_on_the_way_back(bench: Bench) -> None:
    bench.room.fits, bench.room.fits_beside_a_sleeper = False, True
    bench.workers.rss_bytes = 4 << 30
    pid = bench.workers.pids["small"]
    bench.plans.set_default("b", "test")
    await bench.turn(4)
    assert bench.contexts() == {"small@2": 8192}
    assert bench.switches() == ["sleep-first", "switched"]
    bench.plans.set_default("a", "test")
    await bench.turn(4)
    assert bench.contexts() == {"small": 4096}
    assert bench.workers.pids["small"] == pid
    assert bench.switches() == ["sleep-first", "switched"] * 2
    assert bench.controller.view().converged


async def test_failure_after_sleeping_wakes_the_old(bench: Bench) -> None:
    bench.room.fits, bench.room.fits_beside_a_sleeper = False, True
    bench.workers.rss_bytes = 4 << 30
    bench.workers.states["small@2"] = WorkerState.BACKOFF
    bench.plans.set_default("b", "test")
    await bench.turn(5)
    assert bench.contexts() == {"small": 4096}
    assert bench.switches() == ["sleep-first", "rolled-back"]


async def test_sleepers_of_another_shape_make_room_before_anything_is_drained(
    bench: Bench, profile: MakeProfile, saved: Save
) -> None:
    saved("c", profile(context=2048))
    bench.plans.set_default("b", "test")
    await bench.turn(3)
    assert set(bench.workers.configs) == {"small", "small@2"}
    bench.room.fits = False
    bench.plans.set_default("c", "test")
    await bench.turn(2)
    assert set(bench.workers.configs) == {"small@2"}, "the sleeper went first"
    await bench.turn(3)
    assert bench.contexts() == {"small@2": 2048}
    assert bench.switches()[-2:] == ["drain-first", "switched"]


async def test_failure_after_draining_goes_back_to_the_old_shape(bench: Bench) -> None:
    bench.room.fits = False
    bench.plans.set_default("b", "test")
    bench.workers.states["small"] = WorkerState.READY
    await bench.turn()
    bench.workers.states["small"] = WorkerState.BACKOFF
    bench.workers.restarts["small"] = 1
    await bench.turn()
    bench.workers.states["small"] = WorkerState.READY
    await bench.turn(2)
    assert bench.workers.configs["small"].max_context_tokens == 4096
    assert bench.switches() == ["drain-first", "rolled-back"]


async def test_death_of_the_old_one_in_its_drain_is_no_failure_of_the_new_shape(bench: Bench) -> None:
    bench.room.fits = False
    bench.plans.set_default("b", "test")
    await bench.turn()
    bench.workers.states["small"] = WorkerState.BACKOFF
    bench.workers.pids.pop("small")
    await bench.turn(2)
    assert bench.switches() == ["drain-first"]
    bench.workers.states["small"], bench.workers.restarts["small"] = WorkerState.STARTING, 1
    bench.workers.pids["small"] = 999
    await bench.turn(2)
    bench.workers.states["small"] = WorkerState.READY
    await bench.turn(2)
    assert bench.switches() == ["drain-first", "switched"]
    assert bench.contexts() == {"small": 8192}
    assert bench.controller.view().converged


async def test_new_shape_that_fails_after_the_old_one_died_goes_back(bench: Bench) -> None:
    bench.room.fits = False
    bench.plans.set_default("b", "test")
    await bench.turn()
    bench.workers.states["small"] = WorkerState.STARTING
    bench.workers.restarts["small"] = 1
    await bench.turn()
    bench.workers.restarts["small"] = 2
    await bench.turn()
    assert bench.switches() == ["drain-first", "rolled-back"]


async def test_activating_a_plan_again_tries_its_failed_switch_again(bench: Bench) -> None:
    bench.workers.states["small@2"] = WorkerState.BACKOFF
    bench.plans.set_default("b", "test")
    await bench.turn(4)
    assert bench.switches() == ["beside", "rolled-back"]
    bench.workers.states["small@2"] = WorkerState.READY
    view = await bench.controller.activate("b", None, "operator")
    assert not view.converged, "the workers follow"
    await bench.turn(3)
    assert bench.switches() == ["beside", "rolled-back", "beside", "switched"]


async def test_plan_that_changes_in_mid_switch_calls_it_off(bench: Bench) -> None:
    bench.workers.states["small@2"] = WorkerState.STARTING
    bench.plans.set_default("b", "test")
    await bench.turn(2)
    bench.plans.set_default("a", "test")
    await bench.turn(4)
    assert bench.contexts() == {"small": 4096}
    assert bench.switches() == ["beside", "called-off"]
    assert bench.controller.view().converged


async def test_worker_that_serves_nobody_is_started_anew_without_a_switch(bench: Bench) -> None:
    bench.workers.states["small"] = WorkerState.LATCHED
    bench.plans.set_default("b", "test")
    await bench.turn()
    assert bench.workers.configs["small"].max_context_tokens == 8192
    assert bench.switches() == []


async def test_load_moves_the_knobs_of_an_adaptive_plan_with_its_reason(
    bench: Bench, profile: MakeProfile, saved: Save
) -> None:
    few, many = profile(), profile(strategy=Strategy.THROUGHPUT)
    saved("a", replace(few, bounds=LiveBounds(few.knobs, many.knobs)))
    bench.workers.stats["small"] = WorkerStats(running=4, waiting=60)
    await bench.turn(12)
    assert bench.workers.configs["small"].knobs == many.knobs
    moves = [event for event in bench.events.recent() if event.fields.get("move") == "load"]
    assert moves
    assert "streams wanted" in moves[0].reason
    bench.workers.stats["small"] = WorkerStats()
    await bench.turn(30)
    assert bench.workers.configs["small"].knobs == few.knobs
    assert bench.controller.view().converged


async def test_worker_that_is_being_replaced_gets_as_many_streams_as_its_plan_allows(
    bench: Bench, profile: MakeProfile, saved: Save
) -> None:
    few, many = profile(), profile(strategy=Strategy.THROUGHPUT)
    saved("a", replace(few, bounds=LiveBounds(few.knobs, many.knobs)))
    await bench.turn(2)
    bench.workers.inflight["small"] = 3
    bench.workers.states["small@2"] = WorkerState.STARTING
    bench.plans.set_default("b", "test")
    await bench.turn()
    assert bench.switches() == ["beside"]
    assert bench.workers.configs["small"].knobs == many.knobs


async def test_worker_of_a_drained_device_leaves_for_one_where_its_plan_has_moved(
    bench: Bench, profile: MakeProfile, saved: Save
) -> None:
    bench.workers.configs["small"] = msgspec.structs.replace(bench.workers.configs["small"], device="cuda:0")
    bench.workers.drained = {"cuda:0": "drained by ops"}
    bench.workers.states["small"] = WorkerState.SLEEPING  # as the supervisor has it
    await bench.turn(2)
    assert {name: config.device for name, config in bench.workers.configs.items()} == {"small": "cpu"}


async def test_switch_to_fewer_streams_waits_for_the_backlog_and_not_for_a_load_that_stays(
    bench: Bench, profile: MakeProfile, saved: Save
) -> None:
    few, crowd = profile(context=8192), 50
    saved("day", profile(strategy=Strategy.THROUGHPUT))
    saved("night", few)
    bench.plans.set_default("day", "test")
    await bench.turn()
    bench.workers.inflight["small"] = crowd
    bench.plans.set_default("night", "test")
    await bench.turn(5)
    assert bench.switches() == ["waits"], "said once"
    assert not bench.controller.view().converged
    bench.workers.inflight["small"] = few.knobs.max_running
    await bench.turn(3)
    assert bench.switches() == ["waits", "beside", "switched"]
    bench.plans.set_default("day", "test")
    await bench.turn(4)
    assert bench.switches()[3:] == ["beside", "switched"], "to more streams it goes at once"
    bench.workers.inflight = dict.fromkeys(bench.workers.configs, crowd)
    bench.plans.set_default("night", "test")
    await bench.turn(int(LIMIT_S // 3) - 1)
    assert bench.switches()[5:] == ["waits"]
    await bench.turn(4)
    assert bench.switches()[5:] == ["waits", "beside", "switched"]


def test_gap_is_predicted_from_what_the_last_start_took(bench: Bench, profile: MakeProfile) -> None:
    view = bench.workers.views()[0]
    one, double = profile(), profile()
    weights = one.memory.of("weights")
    ready = WorkerReady(3, 1, "small", "cpu", 1, 1, 16, load_s=2.0, read_bytes=weights, read_s=1.0)
    items = tuple(replace(i, size_bytes=i.size_bytes * 2) if i.name == "weights" else i for i in double.memory.items)
    double = replace(double, memory=replace(double.memory, items=items))
    seen = replace(view, ready=ready)
    grown = predicted_gap_s(seen, double, []) - predicted_gap_s(seen, one, [])
    assert grown == pytest.approx(1.0, rel=0.01)
