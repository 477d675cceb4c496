"""The controller: brings the workers to what the schedule wants, every few seconds and at once after a change."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Protocol
from zoneinfo import ZoneInfo

import structlog
from apscheduler.schedulers.asyncio import AsyncIOScheduler

from daemon.events import EventLog
from daemon.planning.worker_config import same_shape, worker_config
from daemon.store.base import utc_now
from daemon.strategy.plans import Plans, SavedPlan
from daemon.strategy.rules import Rules
from daemon.strategy.schedule import Decision, Override, day_of, plan_at
from daemon.workers.states import WorkerState
from daemon.workers.view import WorkerView
from engine.errors import BayardError
from engine.messages import Knobs, WorkerConfig

PERIOD_S = 3.0
_UNLOAD_WAIT_S = 25.0  # below the time a client of the admin API waits

log = structlog.get_logger("bayard.strategy")


class Workers(Protocol):
    """What the controller needs of the supervisor."""

    async def want(self, name: str, config: WorkerConfig) -> None: ...
    async def unwant(self, name: str, drain_s: float | None, reason: str) -> None: ...
    async def set_knobs(self, name: str, knobs: Knobs) -> None: ...
    def views(self) -> list[WorkerView]: ...


@dataclass(frozen=True, slots=True)
class StrategyView:
    """What is wanted now; for the admin API and the console."""

    plan: str | None
    since_at: datetime | None
    until_at: datetime | None
    reason: str
    rule: str | None
    default: str | None
    override: Override | None
    timezone: str
    next_plan: str | None  # what follows at until_at
    converged: bool  # the workers are as the plan wants them
    problem: str | None  # what keeps them from it
    as_of: datetime


@dataclass(frozen=True, slots=True)
class Segment:
    begins_at: datetime
    ends_at: datetime
    plan: str | None
    reason: str
    rule: str | None


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
        self._leaving: set[asyncio.Task[None]] = set()
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
        async with self._turn:
            for task in self._leaving:
                task.cancel()
            await asyncio.gather(*self._leaving, return_exceptions=True)

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
        await self.reconcile(f"activated by {by}")
        return await asyncio.to_thread(self.view)

    async def release(self, by: str) -> StrategyView:
        """Go back to the schedule."""
        await asyncio.to_thread(self._rules.release, by)
        await self.reconcile(f"released by {by}")
        return await asyncio.to_thread(self.view)

    async def unload(self, model: str, changed_plans: Sequence[str]) -> None:
        """After plans were changed: drain the model's worker, unless the plan in force still loads it.

        Blocks: until the worker is gone, or the time that draining may take is over.
        """
        if changed_plans:
            await self.reconcile(f"model {model} left {', '.join(changed_plans)}")
        leaving = [task for task in self._leaving if task.get_name() == model]
        if leaving:
            await asyncio.wait(leaving, timeout=_UNLOAD_WAIT_S)

    def timeline(self, day: date) -> list[Segment]:
        """The plans of one local day. Blocks: call in a thread."""
        zone = ZoneInfo(self._rules.timezone)
        found = day_of(self._rules.all(), day, zone, self._plans.default(), self._rules.override())
        return [Segment(begin, end, d.plan, d.reason, d.rule) for begin, end, d in found]

    async def _reconcile(self) -> list[str]:
        """What kept single workers from being as wanted; none of them holds up the others."""
        decision, plan = await asyncio.to_thread(self._desired)
        self._announce(decision)
        desired = {} if plan is None else {p.model: worker_config(p) for p in plan.profiles}
        views = {view.name: view for view in self._supervisor.views()}
        moves = 0
        for name in views:
            if name not in desired:
                moves += 1
                self._leave(name, f"plan {decision.plan} does not load it" if decision.plan else decision.reason)
        problems = []
        for name, config in desired.items():
            try:
                moves += await self._bring(name, config, views.get(name), decision)
            except BayardError as error:
                problems.append(_told(error))
        self._converged = (
            not moves
            and not problems
            and all(name in views and views[name].state is WorkerState.READY for name in desired)
        )
        return problems

    def _desired(self) -> tuple[Decision, SavedPlan | None]:
        decision = plan_at(
            self._rules.all(), self._clock(), self._plans.default(), self._rules.override(), look_ahead=False
        )
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

    async def _bring(self, name: str, config: WorkerConfig, view: WorkerView | None, decision: Decision) -> int:
        """One step for one worker; 0 if none was needed."""
        why = f"plan {decision.plan}: {decision.reason}"
        if self._is_leaving(name):
            return 1  # a later tick starts it again, once it is gone
        if view is None:
            self._events.publish("worker", name, None, "wanted", why)
            await self._supervisor.want(name, config)
            return 1
        if not same_shape(view.config, config):
            reason = f"{why}; the running worker has another shape: it is drained and started anew"
            self._events.publish("worker", name, "wanted", "wanted", reason, move="restart")
            await self._supervisor.want(name, config)
            return 1
        if view.config.knobs != config.knobs:
            before = view.config.knobs
            await self._supervisor.set_knobs(name, config.knobs)
            reason = f"knobs moved in place; {why}"
            self._events.publish("worker", name, _spelled(before), _spelled(config.knobs), reason, move="knobs")
            return 1
        return 0

    def _is_leaving(self, name: str) -> bool:
        return any(task.get_name() == name for task in self._leaving)

    def _leave(self, name: str, reason: str) -> None:
        """Drain a worker without holding up the tick."""
        if self._is_leaving(name):
            return
        self._events.publish("worker", name, "wanted", "unwanted", reason)
        task = asyncio.create_task(self._supervisor.unwant(name, None, reason), name=name)
        self._leaving.add(task)
        task.add_done_callback(self._left)

    def _left(self, task: asyncio.Task[None]) -> None:
        self._leaving.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("drain_failed", worker=task.get_name(), error=str(error))
            self._note_problem(f"worker {task.get_name()} could not be drained: {error}")

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


def activate(plans: Plans, rules: Rules, name: str, for_s: float | None, by: str, reason: str = "") -> None:
    """What activating means in the store; the offline command does this alone, and the next start follows it.

    Raises: NotFound, InvalidParameter.
    """
    plans.get(name)
    if for_s is None and not any(rule.enabled for rule in rules.all()):
        plans.set_default(name, by)
        rules.release(by)
    else:
        rules.set_override(name, for_s, reason, by)


def _told(error: BayardError) -> str:
    return f"{error.message} {error.hint}".strip()


def _spelled(knobs: Knobs) -> str:
    return f"{knobs.max_running} streams, {knobs.prefill_chunk} prompt tokens a step"
