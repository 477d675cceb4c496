"""Switcher: puts a worker of another shape in a running one's place, and the old one back when that fails.

Where both fit together the new one is started beside the old, proven with a test generation, given the traffic, and
the old one drained: nobody notices. Where they do not, the old one is drained and sleeps first, or ends if even that
holds too much, and the gap is predicted before and measured after. A worker of the new shape that sleeps is woken
rather than started. Nothing of a switch is stored: a daemon that dies in one begins from the rules and the clock.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

from daemon.events import EventLog
from daemon.planning.profile import Profile
from daemon.planning.worker_config import same_shape
from daemon.strategy.gap import measured_gap_s, predicted_gap_s, predicted_wake_s
from daemon.strategy.resting import Resting, asleep_bytes, held_bytes, other_name
from daemon.strategy.room import RoomAnswer, no_room
from daemon.workers.states import WorkerState
from daemon.workers.view import WorkerView
from engine.messages import WorkerConfig

AGAIN_AFTER_S = 600.0  # what has failed is left alone so long
LIMIT_S = 1800.0  # a new worker that is not ready by then has failed
_FAILED = (WorkerState.BACKOFF, WorkerState.LATCHED, WorkerState.LOST)

Room = Callable[[Profile, Sequence[WorkerView], Mapping[str, int], int], RoomAnswer]


class How(StrEnum):
    BESIDE = "beside"
    SLEEP_FIRST = "sleep-first"
    DRAIN_FIRST = "drain-first"


class Workers(Protocol):
    async def want(self, name: str, config: WorkerConfig, *, prove: bool = False) -> None: ...


@dataclass(slots=True)
class Switch:
    """One under way. Mutable. Owner: the Switcher."""

    model: str
    plan: str
    how: How
    old: str  # worker
    new: str  # worker; the same as old where it is drained first
    config: WorkerConfig
    before: WorkerConfig
    begun_mono: float
    event_id: int
    predicted_gap_s: float
    restarts: int  # of the new worker, before
    old_pid: int | None  # of the worker that has the new one's name
    wakes: bool = False  # the new one sleeps, rather than that there is none
    launched: bool = True  # False: the old one has to be asleep first
    begun: bool = False  # a process of the new shape was seen


@dataclass(frozen=True, slots=True)
class _Failure:
    config: WorkerConfig
    reason: str
    until_mono: float


class Switcher:
    """Owner: the PlanController. Event loop only; each call takes the next step."""

    def __init__(
        self,
        workers: Workers,
        events: EventLog,
        leave: Callable[[WorkerView, str], None],
        room: Room = no_room,
        clock: Callable[[], float] = time.monotonic,
        *,
        resting: Resting,
        put_away: Callable[[WorkerView, str], Awaitable[None]],
    ) -> None:
        """leave: ends a worker. put_away: lets it sleep if a plan may want it again, else ends it."""
        self._workers = workers
        self._events = events
        self._leave = leave
        self._room = room
        self._resting = resting
        self._put_away = put_away
        self._clock = clock
        self._running: dict[str, Switch] = {}
        self._failures: dict[str, _Failure] = {}
        self._promised: dict[str, Profile] = {}

    def promise(self, worker: str, profile: Profile) -> None:
        """Remember what a worker may grow to."""
        self._promised[worker] = profile

    @property
    def promised(self) -> Mapping[str, int]:
        return {worker: profile.memory.total_bytes for worker, profile in self._promised.items()}

    def current(self, model: str) -> Switch | None:
        return self._running.get(model)

    def failure(self, model: str, config: WorkerConfig) -> str | None:
        """Why this shape is not tried now; None if it may be."""
        failed = self._failures.get(model)
        if failed is None:
            return None
        if not same_shape(failed.config, config) or self._clock() >= failed.until_mono:
            del self._failures[model]
            return None
        return failed.reason

    async def begin(
        self, profile: Profile, config: WorkerConfig, old: WorkerView, views: Sequence[WorkerView], plan: str, why: str
    ) -> None:
        """Start one. old: the worker that serves the model now."""
        if old.state is not WorkerState.READY:  # it serves nobody: there is nothing to keep up or to go back to
            reason = f"{why}; the {old.state} worker has another shape: it is started anew"
            self._events.publish("worker", old.name, "wanted", "wanted", reason, move="restart")
            await self._workers.want(old.name, config)
            self.promise(old.name, profile)
            return
        by_name = {view.name: view for view in views}
        sleeper = self._resting.matching(config, views)
        how, room = await self._way(profile, old, sleeper, views)
        if how is How.DRAIN_FIRST:
            # None need be asleep in vain: their memory may be what is missing.
            in_the_way = sleeper or self._resting.oldest(by_name, profile.device, None)
            if in_the_way is not None:
                self._leave(in_the_way, f"its memory is wanted for plan {plan}")
                return
        new = old.name if how is How.DRAIN_FIRST else other_name(profile.model, by_name)
        if sleeper is not None:
            new = sleeper.name
        predicted_s = 0.0 if how is How.BESIDE else round(self._predicted_s(profile, old, sleeper), 2)
        event = self._events.publish(
            "switch", profile.model, None, how.value, _told(how, new, sleeper, predicted_s, f"{why}; {room.reason}"),
            old=old.name, new=new, predicted_gap_s=predicted_s,
        )  # fmt: skip
        restarts = sleeper.restarts if sleeper is not None else old.restarts if how is How.DRAIN_FIRST else 0
        switch = Switch(
            profile.model, plan, how, old.name, new, config, old.config, self._clock(), event.id, predicted_s,
            restarts, old.pid if how is How.DRAIN_FIRST else None, sleeper is not None, how is not How.SLEEP_FIRST,
        )  # fmt: skip
        self._running[profile.model] = switch
        self.promise(new, profile)
        if how is How.SLEEP_FIRST:
            await self._resting.lay(old, f"it makes room for {new}, for plan {plan}", drain_s=None)
        else:
            await self._launch(switch)

    async def _way(
        self, profile: Profile, old: WorkerView, sleeper: WorkerView | None, views: Sequence[WorkerView]
    ) -> tuple[How, RoomAnswer]:
        """The first of the ways, the gentlest first, that memory allows."""
        own = held_bytes(sleeper)
        room = await asyncio.to_thread(self._room, profile, views, self.promised, own)
        if room.fits:
            return How.BESIDE, room
        before = self._promised.get(old.name)
        if before is not None and before.device == profile.device:
            freed = max(0, held_bytes(old) - asleep_bytes(before))
            then = [replace(v, state=WorkerState.SLEEPING) if v.name == old.name else v for v in views]
            asleep = await asyncio.to_thread(self._room, profile, then, self.promised, own + freed)
            if asleep.fits:
                return How.SLEEP_FIRST, room
        return How.DRAIN_FIRST, room

    def _predicted_s(self, profile: Profile, old: WorkerView, sleeper: WorkerView | None) -> float:
        if sleeper is not None:
            return predicted_wake_s(profile)
        return predicted_gap_s(old, profile, self._events.recent(limit=1000))

    async def _launch(self, switch: Switch) -> None:
        switch.launched = True
        if switch.wakes:
            await self._resting.wake(switch.new, f"plan {switch.plan} wants it again", prove=True)
        else:
            await self._workers.want(switch.new, switch.config, prove=True)

    async def step(self, switch: Switch, config: WorkerConfig, views: Mapping[str, WorkerView]) -> None:
        """See how a switch is getting on. config: what is wanted by now."""
        new = views.get(switch.new)
        if not same_shape(switch.config, config):
            await self._call_off(switch, views)
        elif not switch.launched:
            old = views.get(switch.old)
            if old is None or old.state not in (WorkerState.READY, WorkerState.DRAINING, WorkerState.STOPPING):
                await self._launch(switch)
        elif new is None:  # unloaded by somebody: what is wanted is worked out anew
            self._end(switch)
        elif new.state is WorkerState.READY and new.pid != switch.old_pid:
            await self._finish(switch, views)
        elif self._has_failed(switch, new):
            await self._roll_back(switch, new, views)

    def forgive(self) -> None:
        """Try again what has failed: somebody asked for it."""
        self._failures.clear()

    def forget(self, models: Sequence[str]) -> None:
        """Models that are wanted no more."""
        for model in models:
            self._running.pop(model, None)
            self._failures.pop(model, None)

    def _has_failed(self, switch: Switch, new: WorkerView) -> bool:
        if self._clock() - switch.begun_mono > LIMIT_S or new.state is WorkerState.LATCHED:
            return True
        if not self._has_begun(switch, new):
            return False
        return new.state in _FAILED or new.restarts > switch.restarts

    def _has_begun(self, switch: Switch, new: WorkerView) -> bool:
        """Whether a process of the new shape was ever started: the death of an old one that drains is not its fault."""
        if switch.begun or switch.how is not How.DRAIN_FIRST:
            return True
        events = self._events.recent(switch.event_id, limit=1000)
        switch.begun = new.pid not in (None, switch.old_pid) or any(
            (event.kind, event.subject, event.to_state) == ("worker", switch.new, WorkerState.STARTING)
            for event in events
        )
        switch.restarts = new.restarts  # the old one's death may be among them
        return switch.begun

    async def _finish(self, switch: Switch, views: Mapping[str, WorkerView]) -> None:
        took_s = round(self._clock() - switch.begun_mono, 2)
        gap_s: float | None = 0.0
        reason = f"{switch.new} serves plan {switch.plan} after {took_s:.1f} s; no request waited for it"
        if switch.how is not How.BESIDE:
            gap_s = measured_gap_s(self._events.recent(limit=1000), switch.old, switch.new, switch.event_id)
            told = "was not seen" if gap_s is None else f"was {gap_s:.2f} s"
            reason = f"{switch.new} serves plan {switch.plan}; the gap {told}, {switch.predicted_gap_s:.1f} s predicted"
        self._events.publish(
            "switch", switch.model, switch.how.value, "switched", reason,
            gap_s=gap_s, predicted_gap_s=switch.predicted_gap_s, took_s=took_s,
        )  # fmt: skip
        self._end(switch)
        if switch.how is How.BESIDE and (old := views.get(switch.old)) is not None:
            await self._put_away(old, f"{switch.new} has taken its place for plan {switch.plan}")

    async def _roll_back(self, switch: Switch, new: WorkerView, views: Mapping[str, WorkerView]) -> None:
        cause = self._cause(switch) or new.reason
        self._failures[switch.model] = _Failure(
            switch.config,
            f"the switch of {switch.model} to plan {switch.plan} failed: {cause}; the worker from before goes on",
            self._clock() + AGAIN_AFTER_S,
        )
        self._end(switch)
        self._events.publish(
            "switch", switch.model, switch.how.value, "rolled-back",
            f"{switch.new} failed for plan {switch.plan}: {cause}; it is as it was before, tried again "
            f"in {AGAIN_AFTER_S / 60:.0f} min, with another plan or when the plan is activated again",
            old=switch.old, new=switch.new,
        )  # fmt: skip
        if switch.how is How.DRAIN_FIRST:
            await self._workers.want(switch.old, switch.before)
            return
        self._leave(new, "its switch failed")
        if switch.how is How.SLEEP_FIRST:
            await self._wake_old(switch, views)

    async def _wake_old(self, switch: Switch, views: Mapping[str, WorkerView]) -> None:
        """It serves again, whether or not its process was kept; one that is not asleep yet goes on from there."""
        old = views.get(switch.old)
        if old is not None and old.state is WorkerState.SLEEPING:
            await self._resting.wake(switch.old, f"the switch to plan {switch.plan} is over")

    def _cause(self, switch: Switch) -> str:
        """Why the new worker failed the last time: by now it may be starting again."""
        for event in reversed(self._events.recent(switch.event_id, limit=1000)):
            if (event.kind, event.subject) == ("worker", switch.new) and event.to_state in _FAILED:
                return event.reason
        return ""

    async def _call_off(self, switch: Switch, views: Mapping[str, WorkerView]) -> None:
        """Another shape is wanted by now: a new worker beside the old goes; one that was drained goes on from there."""
        old = views.get(switch.old)
        if switch.how is How.SLEEP_FIRST and not switch.launched and old is not None and not _is_asleep(old):
            return  # it can be woken once it is asleep
        self._end(switch)
        self._events.publish(
            "switch", switch.model, switch.how.value, "called-off", f"plan {switch.plan} is no longer wanted"
        )
        if switch.how is How.DRAIN_FIRST:
            return
        if switch.launched and (new := views.get(switch.new)) is not None:
            self._leave(new, "its switch was called off")
        if switch.how is How.SLEEP_FIRST:
            await self._wake_old(switch, views)

    def _end(self, switch: Switch) -> None:
        self._running.pop(switch.model, None)


def _is_asleep(view: WorkerView) -> bool:
    return view.state is WorkerState.SLEEPING


def _told(how: How, new: str, sleeper: WorkerView | None, gap_s: float, why: str) -> str:
    told = "is started" if sleeper is None else "is woken"
    match how:
        case How.BESIDE:
            return f"another shape is wanted: {new} {told} beside it, proven and given the traffic ({why})"
        case How.SLEEP_FIRST:
            return f"another shape is wanted: it sleeps first, then {new} {told}, a gap of about {gap_s:.1f} s ({why})"
        case How.DRAIN_FIRST:
            return f"another shape is wanted: it is drained and started anew, a gap of about {gap_s:.1f} s ({why})"
