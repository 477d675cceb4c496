"""LoadController: moves a running worker's knobs with its measured load, within what its plan allows.

A worker stands on one of a few steps between the plan's latency end and its throughput end. It goes up as soon as the
streams that are wanted nearly fill what the step allows, straight to the step that has room for them, and comes down
only when a lower one would be well filled too and a while has passed: between the two thresholds nothing moves.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from daemon.planning.live_bounds import LiveBounds
from daemon.planning.profile import Profile
from daemon.strategy.load import Load, LoadSample
from daemon.workers.states import WorkerState
from daemon.workers.view import WorkerView
from engine.messages import Knobs

STEPS = 5  # with both ends
FULL = 0.9  # of the streams a step allows: more, and it goes up
ROOMY = 0.6  # of those a lower step allows: less, and it comes down
RISE_SHARE = 1 / 3  # of the dwell, before the next move up
_PAGES_FULL = 0.97  # more streams would only wait for pages


@dataclass(slots=True)
class _Standing:
    """Where one model stands."""

    bounds: LiveBounds
    nominal: Knobs
    step: int
    moved_mono: float
    reason: str
    load: Load = field(default_factory=Load)


@dataclass(frozen=True, slots=True)
class LoadMove:
    """The knobs a worker is to have now, and why."""

    knobs: Knobs
    reason: str
    position: float  # 0: latency end, 1: throughput end


class LoadController:
    """Owner: the PlanController; asked once a tick for each wanted model."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._standings: dict[str, _Standing] = {}

    def knobs(self, profile: Profile, view: WorkerView | None) -> LoadMove | None:
        """Where this model's worker is to stand; None where its plan leaves the knobs alone."""
        if profile.bounds is None or not profile.generates:
            self._standings.pop(profile.model, None)
            return None
        now = self._clock()
        standing = self._standings.get(profile.model)
        if standing is None or (standing.bounds, standing.nominal) != (profile.bounds, profile.knobs):
            standing = self._begin(profile, profile.bounds, now, standing)
        if view is not None and view.state is WorkerState.READY:
            sample = LoadSample.of(view, now)
            if sample is not None:
                standing.load.note(sample)
                self._move(standing, now)
        return LoadMove(standing.bounds.at(_position(standing.step)), standing.reason, _position(standing.step))

    def load_of(self, model: str) -> Load | None:
        standing = self._standings.get(model)
        return None if standing is None else standing.load

    def keep(self, models: Collection[str]) -> None:
        """Forget all others."""
        for model in self._standings.keys() - set(models):
            del self._standings[model]

    def _begin(self, profile: Profile, bounds: LiveBounds, now: float, before: _Standing | None) -> _Standing:
        """At the step nearest to the plan's own knobs, or above it where the load of before wants more already."""
        step = _nearest(bounds, profile.knobs.max_running)
        reason = f"the plan's own place, {profile.knobs.max_running:,} streams"
        if before is not None and (wanted := _first_with_room(bounds, before.load.pressing, 0)) > step:
            step, reason = wanted, f"load: {before.load}, more than the plan's own place has room for"
        standing = _Standing(bounds, profile.knobs, step, now, reason)
        if before is not None:
            standing.load = before.load
        self._standings[profile.model] = standing
        return standing

    def _move(self, standing: _Standing, now: float) -> None:
        load, bounds = standing.load, standing.bounds
        allowed = bounds.at(_position(standing.step)).max_running
        passed_s = now - standing.moved_mono
        if load.pressing > FULL * allowed and standing.step < STEPS - 1:
            if passed_s < bounds.dwell_s * RISE_SHARE or load.pages_share > _PAGES_FULL:
                return
            step = _first_with_room(bounds, load.pressing, standing.step + 1)
            told = f"more than {FULL:.0%} of the {allowed:,} allowed"
        else:
            if standing.step == 0 or passed_s < bounds.dwell_s:
                return
            step = _first_with_room(bounds, load.demand * FULL / ROOMY, 0)
            if step >= standing.step:
                return
            lower = bounds.at(_position(step)).max_running
            told = f"at most {ROOMY:.0%} of the {lower:,} that {_spelled(step)} allows"
        standing.reason = f"load: {load}, {told}; from {_spelled(standing.step)} to {_spelled(step)}"
        standing.step, standing.moved_mono = step, now


def _position(step: int) -> float:
    return step / (STEPS - 1)


def _spelled(step: int) -> str:
    names = {0: "the latency end", STEPS - 1: "the throughput end"}
    return names.get(step, f"step {step} of {STEPS - 1}")


def _nearest(bounds: LiveBounds, streams: int) -> int:
    return min(range(STEPS), key=lambda step: abs(bounds.at(_position(step)).max_running - streams))


def _first_with_room(bounds: LiveBounds, demand: float, lowest: int) -> int:
    """The first step from `lowest` that this many streams do not nearly fill; the last one if they fill all."""
    for step in range(lowest, STEPS):
        if demand <= FULL * bounds.at(_position(step)).max_running:
            return step
    return STEPS - 1
