"""Switcher: puts a worker of another shape in a running one's place, and the old one back when that fails.

Where both fit together the new one is started beside the old, proven with a test generation, given the traffic, and
the old one drained: nobody notices. Where they do not, the old one is drained first, and the gap is predicted before
and measured after. Nothing of a switch is stored: a daemon that dies in one begins from the rules and the clock.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from daemon.events import EventLog
from daemon.planning.profile import Profile
from daemon.planning.worker_config import same_shape
from daemon.strategy.gap import measured_gap_s, predicted_gap_s
from daemon.strategy.room import RoomAnswer, no_room
from daemon.workers.states import WorkerState
from daemon.workers.view import WorkerView
from engine.messages import WorkerConfig

AGAIN_AFTER_S = 600.0  # what has failed is left alone so long
LIMIT_S = 1800.0  # a new worker that is not ready by then has failed
_FAILED = (WorkerState.BACKOFF, WorkerState.LATCHED, WorkerState.LOST)

Room = Callable[[Profile, Sequence[WorkerView], Mapping[str, int]], RoomAnswer]


class How(StrEnum):
    BESIDE = "beside"
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
    restarts: int  # of the worker before
    old_pid: int | None


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
    ) -> None:
        self._workers = workers
        self._events = events
        self._leave = leave
        self._room = room
        self._clock = clock
        self._running: dict[str, Switch] = {}
        self._failures: dict[str, _Failure] = {}
        self._promised: dict[str, int] = {}

    def promise(self, worker: str, profile: Profile) -> None:
        """Remember what a worker may grow to."""
        self._promised[worker] = profile.memory.total_bytes

    @property
    def promised(self) -> Mapping[str, int]:
        return dict(self._promised)

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
        room = await asyncio.to_thread(self._room, profile, views, dict(self._promised))
        how = How.BESIDE if room.fits else How.DRAIN_FIRST
        new = _other_name(profile.model, {view.name for view in views}) if room.fits else old.name
        predicted_s = 0.0 if room.fits else round(predicted_gap_s(old, profile, self._events.recent(limit=1000)), 2)
        told = f"{why}; the running worker has another shape"
        if room.fits:
            reason = f"{told}: {new} is started beside it, proven and given the traffic ({room.reason})"
        else:
            reason = f"{told}: it is drained and started anew, a gap of about {predicted_s:.1f} s ({room.reason})"
        event = self._events.publish(
            "switch", profile.model, None, how.value, reason, old=old.name, new=new, predicted_gap_s=predicted_s
        )
        self._running[profile.model] = Switch(
            profile.model, plan, how, old.name, new, config, old.config, self._clock(), event.id, predicted_s,
            old.restarts, old.pid,
        )  # fmt: skip
        await self._workers.want(new, config, prove=True)
        self.promise(new, profile)

    async def step(self, switch: Switch, config: WorkerConfig, views: Mapping[str, WorkerView]) -> None:
        """See how a switch is getting on. config: what is wanted by now."""
        new = views.get(switch.new)
        if not same_shape(switch.config, config):
            self._call_off(switch, views)
            return
        if new is None:  # unloaded by somebody: what is wanted is worked out anew
            self._end(switch)
        elif new.state is WorkerState.READY and new.pid != switch.old_pid:
            self._finish(switch, views)
        elif self._has_failed(switch, new):
            await self._roll_back(switch, new, views)

    def forget(self, models: Sequence[str]) -> None:
        """Models that are wanted no more."""
        for model in models:
            self._running.pop(model, None)
            self._failures.pop(model, None)

    def _has_failed(self, switch: Switch, new: WorkerView) -> bool:
        before = switch.restarts if switch.how is How.DRAIN_FIRST else 0
        late = self._clock() - switch.begun_mono > LIMIT_S
        return late or new.state in _FAILED or new.restarts > before

    def _finish(self, switch: Switch, views: Mapping[str, WorkerView]) -> None:
        took_s = round(self._clock() - switch.begun_mono, 2)
        gap_s: float | None = 0.0
        reason = f"{switch.new} serves plan {switch.plan} after {took_s:.1f} s; no request waited for it"
        if switch.how is How.DRAIN_FIRST:
            gap_s = measured_gap_s(self._events.recent(limit=1000), switch.new, switch.event_id)
            told = "was not seen" if gap_s is None else f"was {gap_s:.2f} s"
            reason = f"{switch.new} serves plan {switch.plan}; the gap {told}, {switch.predicted_gap_s:.1f} s predicted"
        self._events.publish(
            "switch", switch.model, switch.how.value, "switched", reason,
            gap_s=gap_s, predicted_gap_s=switch.predicted_gap_s, took_s=took_s,
        )  # fmt: skip
        self._end(switch)
        if switch.how is How.BESIDE and (old := views.get(switch.old)) is not None:
            self._leave(old, f"{switch.new} has taken its place for plan {switch.plan}")

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
            f"in {AGAIN_AFTER_S / 60:.0f} min or with another plan",
            old=switch.old, new=switch.new,
        )  # fmt: skip
        if switch.how is How.BESIDE:
            self._leave(new, "its switch failed")
        else:
            await self._workers.want(switch.old, switch.before)

    def _cause(self, switch: Switch) -> str:
        """Why the new worker failed the last time: by now it may be starting again."""
        for event in reversed(self._events.recent(switch.event_id, limit=1000)):
            if (event.kind, event.subject) == ("worker", switch.new) and event.to_state in _FAILED:
                return event.reason
        return ""

    def _call_off(self, switch: Switch, views: Mapping[str, WorkerView]) -> None:
        """Another shape is wanted by now: a new worker beside the old goes; one that was drained goes on from there."""
        self._end(switch)
        self._events.publish(
            "switch", switch.model, switch.how.value, "called-off", f"plan {switch.plan} is no longer wanted"
        )
        if switch.how is How.BESIDE and (new := views.get(switch.new)) is not None:
            self._leave(new, "its switch was called off")

    def _end(self, switch: Switch) -> None:
        self._running.pop(switch.model, None)


def _other_name(model: str, taken: set[str]) -> str:
    """The model's own name, or the first free one of those beside it."""
    if model not in taken:
        return model
    number = 2
    while f"{model}@{number}" in taken:
        number += 1
    return f"{model}@{number}"
