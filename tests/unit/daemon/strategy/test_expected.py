"""What a request is told of a model that no worker serves, by the plan in force and what came of it."""

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
from tests.fakes.strategy_parts import FakeWorkers

MakeProfile = Callable[..., Profile]
Save = Callable[..., SavedPlan]


class Box:
    """Room for so many workers that are awake, as far as it is told of them."""

    def __init__(self, plans: Plans, rules: Rules, events: EventLog) -> None:
        self.workers, self.events, self.now, self.places = FakeWorkers(), events, 100.0, 1
        self.controller = PlanController(plans, rules, self.workers, events, room=self.room, mono=lambda: self.now)
        self.router = Router(lambda path: object())  # type: ignore[arg-type,return-value]
        self.router.views = self.workers.views
        self.router.imported = lambda: ["one", "two", "three"]
        self.router.ask = self.controller.on_demand.ask
        self.router.resting = self.controller.expected.is_unwanted
        self.router.coming = self.controller.expected.coming
        self.router.offers = lambda: self.controller.expected.offers

    def room(
        self, profile: Profile, views: Sequence[WorkerView], promised: Mapping[str, int], returned_bytes: int = 0
    ) -> RoomAnswer:
        taken = sum(view.state is not WorkerState.SLEEPING for view in views)
        return RoomAnswer(taken < self.places, f"{taken} of {self.places} places are taken")

    async def turn(self, times: int = 1) -> None:
        for _ in range(times):
            self.now += 3.0
            await self.controller.reconcile("test")
            await asyncio.sleep(0)


@pytest.fixture
def box(plans: Plans, rules: Rules, events: EventLog) -> Box:
    return Box(plans, rules, events)


def on_demand(profile: Profile) -> Profile:
    return replace(profile, on_demand=OnDemandTerms(keep_alive_s=60.0))


async def test_request_before_the_plan_is_read_is_told_to_wait(
    box: Box, plans: Plans, profile: MakeProfile, saved: Save
) -> None:
    saved("a", profile("one"))
    plans.set_default("a", "test")
    with pytest.raises(NotReady, match="has just started") as caught:
        box.router.replica_for("one")
    assert (caught.value.retry_after_s or 0.0) < 60, "it is on its way"
    assert box.router.on_demand() == {}
    await box.turn()
    with pytest.raises(NotReady):
        box.router.replica_for("one")
    with pytest.raises(ModelNotFound, match="the active plan does not load it"):
        box.router.replica_for("two")


async def test_model_of_the_plan_whose_worker_cannot_be_started_is_not_unknown(
    box: Box, plans: Plans, profile: MakeProfile, saved: Save
) -> None:
    saved("a", profile("one"))
    plans.set_default("a", "test")
    box.workers.broken.add("one")
    await box.turn()
    with pytest.raises(NotReady, match="could not be started"):
        box.router.replica_for("one")


async def test_on_demand_model_that_can_never_fit_is_refused_with_the_numbers(
    box: Box, plans: Plans, profile: MakeProfile, saved: Save
) -> None:
    box.places = 0
    saved("a", on_demand(profile("one")))
    plans.set_default("a", "test")
    await box.turn()
    with pytest.raises(NotReady, match=r"about to be loaded|loaded for this request"):
        box.router.replica_for("one")
    await asyncio.sleep(0.1)
    with pytest.raises(
        NotReady, match="0 of 0 places are taken, and nothing is loaded that could be put away"
    ) as caught:
        box.router.replica_for("one")
    assert (caught.value.retry_after_s or 0.0) >= 60, "nothing is on its way"
    box.places = 1
    await box.turn()
    assert box.workers.awake == {"one"}


async def test_on_demand_models_asked_for_at_once_share_the_room(
    box: Box, plans: Plans, profile: MakeProfile, saved: Save
) -> None:
    saved("a", *(on_demand(profile(name)) for name in ("one", "two", "three")))
    plans.set_default("a", "test")
    await box.turn()
    for name in ("one", "two", "three"):
        box.controller.on_demand.ask(name)
    await asyncio.sleep(0.1)
    assert len(box.workers.awake) == 1
    (first,) = box.workers.awake
    box.workers.inflight[first] = 1
    await box.turn(2)
    other = next(name for name in ("one", "two", "three") if name != first)
    with pytest.raises(NotReady, match="no other on-demand model is idle"):
        box.router.replica_for(other)


async def test_sleepers_asked_for_at_once_share_the_room(
    box: Box, plans: Plans, profile: MakeProfile, saved: Save
) -> None:
    box.places = 2
    saved("a", *(on_demand(profile(name)) for name in ("one", "two")))
    plans.set_default("a", "test")
    await box.turn()
    for name in ("one", "two"):
        box.controller.on_demand.ask(name)
    await box.turn()
    box.now += 100.0
    await box.turn(2)
    assert box.workers.awake == set()
    box.places = 1
    for name in ("one", "two"):
        box.controller.on_demand.ask(name)
    await asyncio.sleep(0.1)
    assert len(box.workers.awake) == 1


async def test_sleeper_whose_process_ended_is_not_said_to_be_unplanned(
    box: Box, plans: Plans, profile: MakeProfile, saved: Save
) -> None:
    saved("a", on_demand(profile("one")))
    plans.set_default("a", "test")
    await box.turn()
    box.controller.on_demand.ask("one")
    await box.turn()
    box.now += 100.0
    await box.turn(2)
    assert box.workers.states["one"] is WorkerState.SLEEPING
    box.workers.pids.pop("one")
    await box.turn(2)
    left = next(event.reason for event in box.events.recent() if event.to_state == "unwanted")
    assert "its process is gone; a plan that wants it starts another" in left
