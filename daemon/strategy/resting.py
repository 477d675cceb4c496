"""Resting: workers that the plans do not need now and will need again, asleep with their processes.

They hold no KV pool, on an accelerator no weights either, and serve again within moments. Whoever needs their memory
has it: the one that sleeps longest is ended first. Nothing of it is stored; after a restart there are none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from daemon.events import EventLog
from daemon.planning.fit import RUNTIME, WEIGHTS
from daemon.planning.profile import Profile
from daemon.planning.worker_config import same_shape
from daemon.workers.states import WorkerState
from daemon.workers.view import WorkerView
from engine.messages import WorkerConfig

PATIENT_DRAIN_S = 1800.0  # where nobody waits for what it holds
_ON_THE_WAY = (WorkerState.READY, WorkerState.DRAINING)


class SleepingWorkers(Protocol):
    async def sleep(self, name: str, drain_s: float | None, reason: str, *, keep: bool = False) -> None: ...
    async def wake(self, name: str, reason: str, *, prove: bool = False) -> None: ...


class Resting:
    """Owner: the PlanController. Event loop only."""

    def __init__(self, workers: SleepingWorkers, events: EventLog) -> None:
        self._workers = workers
        self._events = events
        self._hurried: set[str] = set()
        self._names: dict[str, bool] = {}  # that was laid first first; whether it was seen asleep

    def __contains__(self, worker: str) -> bool:
        return worker in self._names

    async def lay(self, view: WorkerView, reason: str, *, drain_s: float | None = PATIENT_DRAIN_S) -> None:
        """Drain a ready worker and let it sleep. Returns at once.

        drain_s: None: as when workers are stopped, since somebody waits for its memory
        """
        self._names[view.name] = False
        self._hurried.discard(view.name)
        self._events.publish("worker", view.name, "wanted", "resting", reason)
        await self._workers.sleep(view.name, drain_s, reason, keep=True)

    async def wake(self, worker: str, reason: str, *, prove: bool = False) -> None:
        """Returns at once. Raises: NotFound, Conflict"""
        self.drop(worker)
        self._events.publish("worker", worker, "resting", "wanted", reason)
        await self._workers.wake(worker, reason, prove=prove)

    def drop(self, worker: str) -> None:
        """It is nobody's to wake or end but the caller's."""
        self._names.pop(worker, None)

    def note(self, views: Mapping[str, WorkerView]) -> list[WorkerView]:
        """See how they are; those whose process has ended are returned. Mutates: who is of no more use is forgotten"""
        ended = []
        for name, seen in list(self._names.items()):
            view = views.get(name)
            if view is not None and view.state is WorkerState.SLEEPING and view.pid is not None:
                self._names[name] = True
            elif view is None or view.state not in _ON_THE_WAY or seen:  # ... or somebody else has woken it
                del self._names[name]
                if view is not None and view.state is WorkerState.SLEEPING:
                    ended.append(view)
        return ended

    def unplanned(self, views: Iterable[WorkerView], shapes: Collection[WorkerConfig]) -> list[WorkerView]:
        """Those that no saved plan would wake."""
        return [view for view in views if view.name in self and not is_planned(view, shapes)]

    def matching(self, config: WorkerConfig, views: Iterable[WorkerView]) -> WorkerView | None:
        """One that is asleep and needs but to be woken to be this."""
        for view in views:
            if view.name in self and view.state is WorkerState.SLEEPING and same_shape(view.config, config):
                return view
        return None

    async def is_going(self, views: Iterable[WorkerView]) -> bool:
        """Whether one of them has not given its memory back yet; it is told that somebody waits for that now."""
        going = [view for view in views if view.name in self and view.state in _ON_THE_WAY]
        for view in going:
            if view.name not in self._hurried:
                self._hurried.add(view.name)
                await self._workers.sleep(view.name, None, f"{view.reason}; its memory is waited for", keep=True)
        return bool(going)

    def oldest(self, views: Mapping[str, WorkerView], device: str, but: WorkerView | None) -> WorkerView | None:
        """The one on the device that sleeps longest."""
        for name in self._names:
            view = views.get(name)
            if view is not None and view.config.device == device and (but is None or but.name != name):
                return view
        return None


def is_planned(view: WorkerView, shapes: Collection[WorkerConfig]) -> bool:
    return any(view.model == shape.model_name and same_shape(view.config, shape) for shape in shapes)


def asleep_bytes(profile: Profile) -> int:
    """What its device still holds of a worker that sleeps."""
    kept = profile.memory.of(RUNTIME)
    return kept + profile.memory.of(WEIGHTS) if profile.device == "cpu" else kept


def held_bytes(view: WorkerView | None) -> int:
    """Of its device, by its own last word."""
    if view is None or view.stats is None:
        return 0
    return view.stats.rss_bytes if view.config.device == "cpu" else view.stats.device_bytes


def other_name(model: str, taken: Sequence[str] | Collection[str]) -> str:
    """The model's own name, or the first free one of those beside it."""
    if model not in taken:
        return model
    number = 2
    while f"{model}@{number}" in taken:
        number += 1
    return f"{model}@{number}"
