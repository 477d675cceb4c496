"""The controller: brings the workers to what the schedule wants, every few seconds and at once after a change."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime
from typing import Protocol
from zoneinfo import ZoneInfo

import msgspec
import structlog
from apscheduler.schedulers.asyncio import AsyncIOScheduler

from daemon.events import EventLog
from daemon.planning.profile import Profile
from daemon.planning.worker_config import same_shape, worker_config
from daemon.store.base import utc_now
from daemon.strategy.activation import activate
from daemon.strategy.aside import Aside
from daemon.strategy.backlog import Backlog
from daemon.strategy.expected import Expected
from daemon.strategy.knob_moves import KnobMoves
from daemon.strategy.leaving import Leaving
from daemon.strategy.load_controller import LoadController
from daemon.strategy.making_room import MakingRoom
from daemon.strategy.on_demand import OnDemand
from daemon.strategy.plans import Plans, SavedPlan
from daemon.strategy.resting import PATIENT_DRAIN_S, Resting, is_planned, other_name
from daemon.strategy.room import no_room
from daemon.strategy.rules import Rules
from daemon.strategy.schedule import Decision, day_of, plan_at
from daemon.strategy.switch import Room, Switcher
from daemon.strategy.view import Segment, StrategyView
from daemon.workers.states import WorkerState
from daemon.workers.view import WorkerView
from engine.errors import BayardError, Conflict
from engine.messages import Knobs, WorkerConfig

PERIOD_S = 3.0
_UNLOAD_WAIT_S = 25.0  # below the time a client of the admin API waits

log = structlog.get_logger("bayard.strategy")


class Workers(Protocol):
    """What the controller needs of the supervisor."""

    async def want(self, name: str, config: WorkerConfig, *, prove: bool = False) -> None: ...
    async def unwant(self, name: str, drain_s: float | None, reason: str) -> None: ...
    async def sleep(self, name: str, drain_s: float | None, reason: str, *, keep: bool = False) -> None: ...
    async def wake(self, name: str, reason: str, *, prove: bool = False) -> None: ...
    async def set_knobs(self, name: str, knobs: Knobs) -> None: ...
    def views(self) -> list[WorkerView]: ...
    @property
    def drained(self) -> Mapping[str, str]: ...


class PlanController:
    """Owner: the Appliance. Event loop only; the store is read in threads."""

    def __init__(
        self,
        plans: Plans,
        rules: Rules,
        supervisor: Workers,
        events: EventLog,
        *,
        period_s: float = PERIOD_S,
        clock: Callable[[], datetime] = utc_now,
        room: Room = no_room,
        mono: Callable[[], float] = time.monotonic,
    ) -> None:
        self._plans = plans
        self._rules = rules
        self._supervisor = supervisor
        self._events = events
        self._period_s = period_s
        self._clock = clock
        self._turn = asyncio.Lock()
        self._ticker: AsyncIOScheduler | None = None
        self._decision = Decision(None, None, None, "the controller has not run yet")
        self._announced: tuple[str | None, str] | None = None
        self._problem: str | None = None
        self._converged = False
        self._leaving = Leaving(supervisor, events, self._note_problem)
        self._resting = Resting(supervisor, events)
        self._shapes: list[WorkerConfig] = []  # of all saved plans
        self.expected = Expected()
        self._load = LoadController(mono)
        self._knobs = KnobMoves(supervisor, events, self._load)
        self._backlog = Backlog(events, mono)
        self.on_demand = OnDemand(mono)
        self._aside = Aside(supervisor, self.reconcile)
        self.on_demand.on_first = lambda model: self._aside.now(f"a request for {model}")
        self._switcher = Switcher(
            supervisor, events, self._leaving.leave, room, mono, resting=self._resting, put_away=self._put_away
        )
        self._making_room = MakingRoom(room, self._leaving, self._resting, self.on_demand, self._put_away)
        self.after_turn: Callable[[list[WorkerView]], None] = lambda views: None  # runs in a thread

    async def start(self) -> None:
        """Reconcile once, then at each tick."""
        logging.getLogger("apscheduler").setLevel(logging.WARNING)  # it tells of every tick
        await self.reconcile("start")
        self._ticker = AsyncIOScheduler(timezone="UTC")
        self._ticker.add_job(
            self.reconcile,
            "interval",
            args=["tick"],
            seconds=self._period_s,
            coalesce=True,
            max_instances=1,
            misfire_grace_time=None,
        )
        self._ticker.start()

    async def stop(self) -> None:
        """Stop ticking. Workers are left as they are: the supervisor stops them."""
        if self._ticker is not None:
            self._ticker.shutdown(wait=False)
            self._ticker = None
        self._aside.cancel()
        async with self._turn:
            await self._leaving.cancel()

    async def reconcile(self, cause: str) -> None:
        """Compare desired with actual and take the cheapest step towards it. Never raises: it is a task's border."""
        async with self._turn:
            try:
                problems = await self._reconcile()
                self._note_problem("; ".join(problems) or None)
                await asyncio.to_thread(self.after_turn, self._supervisor.views())
            except BayardError as error:
                self._note_problem(_told(error))
            except Exception as error:  # the border of the ticker's task; the next tick tries again
                log.exception("reconcile_failed", cause=cause)
                self._note_problem(f"{type(error).__name__}: {error}")

    def view(self) -> StrategyView:
        """Blocks: reads the store; call in a thread."""
        now = self._clock()
        rules, default, override = self._rules.all(), self._plans.default(), self._rules.override()
        decision = plan_at(rules, now, default, override)
        following = None
        if decision.until_at is not None:
            following = plan_at(rules, decision.until_at, default, override, look_ahead=False).plan
        return StrategyView(
            plan=decision.plan,
            since_at=decision.since_at,
            until_at=decision.until_at,
            reason=decision.reason,
            rule=decision.rule,
            default=default,
            override=override,
            timezone=self._rules.timezone,
            next_plan=following,
            converged=self._converged,
            problem=self._problem,
            as_of=now,
        )

    async def activate(self, name: str, for_s: float | None, by: str, reason: str = "") -> StrategyView:
        """Run a plan now: for a time, or until released; where there are no rules it becomes the default.

        Raises: NotFound, InvalidParameter.
        """
        await asyncio.to_thread(activate, self._plans, self._rules, name, for_s, by, reason)
        self._switcher.forgive()
        await self.reconcile(f"activated by {by}")
        return await asyncio.to_thread(self.view)

    async def release(self, by: str) -> StrategyView:
        """Go back to the schedule."""
        await asyncio.to_thread(self._rules.release, by)
        self._switcher.forgive()
        await self.reconcile(f"released by {by}")
        return await asyncio.to_thread(self.view)

    async def unload(self, model: str, changed_plans: Sequence[str]) -> None:
        """After plans were changed: drain the model's worker, unless the plan in force still loads it.

        Blocks: until the worker is gone, or the time that draining may take is over.
        """
        if changed_plans:
            await self.reconcile(f"model {model} left {', '.join(changed_plans)}")
        await self._leaving.of(model, _UNLOAD_WAIT_S)

    def timeline(self, day: date) -> list[Segment]:
        """The plans of one local day. Blocks: call in a thread."""
        zone = ZoneInfo(self._rules.timezone)
        found = day_of(self._rules.all(), day, zone, self._plans.default(), self._rules.override())
        return [Segment(begin, end, d.plan, d.reason, d.rule) for begin, end, d in found]

    async def _reconcile(self) -> list[str]:
        """What kept single workers from being as wanted; none of them holds up the others."""
        decision, plan = await asyncio.to_thread(self._desired)
        self._announce(decision)
        views = {view.name: view for view in self._supervisor.views()}
        profiles = () if plan is None else plan.profiles
        self.on_demand.allow(profiles)
        active = self.on_demand.active(views.values())
        wanted = {p.model: p for p in profiles if p.on_demand is None or p.model in active}
        self.expected.plan(wanted.values(), profiles)
        moves = 0
        for view in self._resting.note(views):
            self._leaving.leave(view, f"its process is gone; a plan that wants it starts another ({view.reason})")
        for view in self._resting.unplanned(views.values(), self._shapes):
            self._resting.drop(view.name)
            self._leaving.leave(view, f"no plan wakes it any more ({view.reason})")
        for view in views.values():
            if view.model not in wanted and view.name not in self._resting:
                moves += 1
                unused = f"plan {decision.plan} loads it on demand, and nobody has asked for a while"
                other = f"plan {decision.plan} does not load it" if decision.plan else decision.reason
                await self._put_away(view, unused if view.model in self.on_demand.names() else other)
        self._load.keep(wanted)
        for view in views.values():
            if view.model not in wanted:
                self._switcher.forget([view.model])
                self._backlog.forget(view.model)
        problems = []
        for profile in wanted.values():
            if profile.on_demand is not None and not self.on_demand.is_used(profile.model):
                continue  # put away in this very turn
            hindrance = None
            try:
                moves += await self._bring(profile, views, decision)
            except BayardError as error:
                hindrance = error
                problems.append(_told(error))
            self.expected.note(profile.model, hindrance)
            for view in self._supervisor.views():  # what was just started takes room from the next
                views.setdefault(view.name, view)
        self.expected.know()
        serving = {view.model for view in views.values() if view.state is WorkerState.READY}
        self._converged = not moves and not problems and serving >= wanted.keys()
        return problems

    def _desired(self) -> tuple[Decision, SavedPlan | None]:
        decision = plan_at(
            self._rules.all(), self._clock(), self._plans.default(), self._rules.override(), look_ahead=False
        )
        self._shapes = [worker_config(profile) for plan in self._plans.all() for profile in plan.profiles]
        return decision, None if decision.plan is None else self._plans.get(decision.plan)

    def _announce(self, decision: Decision) -> None:
        """An event for each change of plan, and for each change of the reason it is in force."""
        if self._announced == (decision.plan, decision.reason):
            return
        before = None if self._announced is None else self._announced[0]
        if decision.plan is not None:
            self._events.publish("plan", decision.plan, before, decision.plan, decision.reason)
        elif before is not None:
            self._events.publish("plan", before, before, None, decision.reason)
        self._announced = (decision.plan, decision.reason)
        self._decision = decision

    async def _bring(self, profile: Profile, views: dict[str, WorkerView], decision: Decision) -> int:
        """One step for one model; 0 if none was needed. Raises: BayardError where it cannot be as wanted."""
        model, why = profile.model, f"plan {decision.plan}: {decision.reason}"
        mine = [v for v in views.values() if v.model == model and v.name not in self._leaving]
        mine = [view for view in mine if view.name not in self._resting]
        config = worker_config(profile)
        if (switch := self._switcher.current(model)) is not None:
            await self._switcher.step(switch, config, views)
            return 1
        for view in mine:
            if view.config.device in self._supervisor.drained and view.config.device != profile.device:
                self._leaving.leave(view, f"{profile.model} moves to {profile.device}")
        mine = [view for view in mine if view.name not in self._leaving]
        if not mine:
            await self._start(profile, config, views, why)
            return 1
        current = mine[0]
        for surplus in mine[1:]:
            self._leaving.leave(surplus, f"{current.name} serves {model} alone")
        if not same_shape(current.config, config):
            if (failed := self._switcher.failure(model, config)) is not None:
                raise Conflict(failed)
            if self._backlog.holds(profile, current, str(decision.plan)):
                return 1
            if len(self._leaving) == 0 and not await self._resting.is_going(views.values()):
                await self._knobs.widen(current, why)
                await self._switcher.begin(profile, config, current, list(views.values()), str(decision.plan), why)
                self._aside.follow(lambda: self._switcher.current(model))
            return 1  # memory is coming back: the next tick sees how much
        self._backlog.forget(model)
        return await self._knobs.bring(profile, current, why)

    async def _start(self, profile: Profile, config: WorkerConfig, views: dict[str, WorkerView], why: str) -> None:
        """Wake the model's worker, or start one; nothing yet where memory for it is still coming back."""
        model = profile.model
        sleeper = self._resting.matching(config, views.values())
        if model in self._leaving or not await self._making_room.made(profile, views, self._switcher.promised, sleeper):
            return
        if sleeper is not None:
            await self._resting.wake(sleeper.name, why)
            views[sleeper.name] = replace(sleeper, state=WorkerState.WARMING)  # as it soon is: it takes room
            self._switcher.promise(sleeper.name, profile)
            return
        name = other_name(model, views)
        move = self._load.knobs(profile, None)
        config = config if move is None else msgspec.structs.replace(config, knobs=move.knobs)
        self._events.publish("worker", name, None, "wanted", why)
        await self._supervisor.want(name, config)
        self._switcher.promise(name, profile)

    async def _put_away(self, view: WorkerView, reason: str, drain_s: float | None = PATIENT_DRAIN_S) -> None:
        """Let it sleep with its process if a saved plan may wake it; else drain and end it."""
        if view.name in self._leaving:
            return
        if view.state is WorkerState.READY and is_planned(view, self._shapes):
            await self._resting.lay(view, reason, drain_s=drain_s)
        else:
            self._leaving.leave(view, reason)

    def _note_problem(self, problem: str | None) -> None:
        if problem == self._problem:
            return
        self._events.publish(
            "plan",
            self._decision.plan or "none",
            "converging" if self._problem is None else "failing",
            "converging" if problem is None else "failing",
            problem or "what was in the way is gone",
        )
        self._problem = problem
        if problem is not None:
            self._converged = False


def _told(error: BayardError) -> str:
    return f"{error.message} {error.hint}".strip()
