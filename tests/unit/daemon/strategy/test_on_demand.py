"""Models that are loaded when they are asked for, against a fake supervisor and a clock that tests move."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest

from daemon.events import EventLog
from daemon.planning.profile import OnDemandTerms, Profile
from daemon.router import Router
from daemon.strategy.controller import PlanController
from daemon.strategy.plans import Plans, SavedPlan
from daemon.strategy.room import RoomAnswer
from daemon.strategy.rules import Rules
from daemon.workers.states import WorkerState
from daemon.workers.view import WorkerView
from engine.errors import ModelNotFound, NotReady
from engine.messages import WorkerStats
from tests.fakes.strategy_parts import FakeWorkers

MakeProfile = Callable[..., Profile]
Save = Callable[..., SavedPlan]
TERMS = OnDemandTerms(keep_alive_s=60.0)


class Bench:
    """Room for two workers."""

    def __init__(self, plans: Plans, rules: Rules, events: EventLog) -> None:
        self.events, self.workers, self.now, self.places = events, FakeWorkers(), 100.0, 2
        self.sleepers_take_none = True
        self.controller = PlanController(plans, rules, self.workers, events, room=self.room, mono=lambda: self.now)

    def room(
        self, profile: Profile, views: Sequence[WorkerView], promised: Mapping[str, int], returned_bytes: int = 0
    ) -> RoomAnswer:
        sleeping = 0 if self.sleepers_take_none else sum(view.state is WorkerState.SLEEPING for view in views)
        taken = len(self.loaded) + sleeping
        return RoomAnswer(taken < self.places, f"{taken} of {self.places} places are taken")

    @property
    def loaded(self) -> set[str]:
        return self.workers.awake

    async def turn(self, times: int = 2, seconds: float = 3.0) -> None:
        for _ in range(times):
            self.now += seconds
            await self.controller.reconcile("test")
            await asyncio.sleep(0)


@pytest.fixture
async def bench(plans: Plans, rules: Rules, events: EventLog, profile: MakeProfile, saved: Save) -> Bench:
    always = profile("always")
    others = [replace(profile(name), on_demand=TERMS) for name in ("one", "two")]
    pinned = replace(profile("pinned"), on_demand=OnDemandTerms(60.0, pinned=True))
    saved("mixed", always, *others, pinned)
    plans.set_default("mixed", "test")
    made = Bench(plans, rules, events)
    await made.turn()
    return made


async def test_model_is_loaded_at_the_first_request_and_put_away_unused(bench: Bench) -> None:
    assert bench.loaded == {"always"}
    assert bench.controller.view().converged
    assert bench.controller.on_demand.ask("one")
    await asyncio.sleep(0.2)  # not at the next tick, but now
    assert bench.loaded == {"always", "one"}
    await bench.turn(10)
    assert bench.loaded == {"always", "one"}
    await bench.turn(15)
    assert bench.loaded == {"always"}
    assert any("nobody has asked" in event.reason for event in bench.events.recent())


async def test_model_in_use_is_kept(bench: Bench) -> None:
    bench.controller.on_demand.ask("one")
    await asyncio.sleep(0.2)
    bench.workers.stats["one"] = WorkerStats(running=1)
    bench.workers.inflight["one"] = 1
    await bench.turn(40)
    assert "one" in bench.loaded


async def test_least_valuable_idle_one_makes_room(bench: Bench) -> None:
    bench.controller.on_demand.ask("one")
    await bench.turn()
    bench.controller.on_demand.ask("two")
    await bench.turn(3)
    assert bench.loaded == {"always", "two"}
    assert any("makes room for two" in event.reason for event in bench.events.recent())


async def test_one_put_away_sleeps_and_is_woken_when_it_is_asked_for_again(bench: Bench) -> None:
    bench.controller.on_demand.ask("one")
    await bench.turn()
    pid = bench.workers.pids["one"]
    bench.controller.on_demand.ask("two")
    await bench.turn(3)
    assert set(bench.workers.configs) == {"always", "one", "two"}
    bench.now += 10
    bench.controller.on_demand.ask("one")
    await bench.turn(3)
    assert bench.loaded == {"always", "one"}
    assert bench.workers.pids["one"] == pid
    assert bench.workers.calls[-1] == ("wake", "one")


async def test_sleeper_that_holds_too_much_is_ended(bench: Bench) -> None:
    bench.sleepers_take_none = False
    bench.controller.on_demand.ask("one")
    await bench.turn()
    bench.controller.on_demand.ask("two")
    await bench.turn(4)
    assert set(bench.workers.configs) == {"always", "two"}
    assert any("its memory is wanted for two" in event.reason for event in bench.events.recent())


async def test_nothing_idle_is_said_and_nothing_always_loaded_goes(bench: Bench) -> None:
    bench.controller.on_demand.ask("one")
    await bench.turn()
    bench.workers.inflight["one"] = 1
    bench.controller.on_demand.ask("two")
    await bench.turn(3)
    assert bench.loaded == {"always", "one"}
    assert "no other on-demand model is idle" in (bench.controller.view().problem or "")


async def test_pinned_model_stays_once_loaded(bench: Bench) -> None:
    bench.controller.on_demand.ask("pinned")
    await bench.turn(40)
    bench.controller.on_demand.ask("one")
    await bench.turn(3)
    assert bench.loaded == {"always", "pinned"}


async def test_router_asks_for_it_and_says_that_it_comes(bench: Bench) -> None:
    router = Router(lambda path: object())  # type: ignore[arg-type,return-value]
    router.ask = bench.controller.on_demand.ask
    with pytest.raises(NotReady, match="is loaded for this request") as caught:
        router.replica_for("one")
    assert (caught.value.retry_after_s or 0) < 60
    with pytest.raises(ModelNotFound):
        router.replica_for("unknown")
    await asyncio.sleep(0.2)
    assert "one" in bench.loaded
