"""LoadController: moves a running worker's knobs with its measured load, within what its plan allows.

A worker stands on one of a few steps between the plan's latency end and its throughput end. Up is quick: as soon as the
streams that are wanted, or soon will be, nearly fill what the step allows, straight to the step that has room. Down is
slow: only once a lower step would have been well filled for the whole dwell, back to the plan's own place; below that
place one step at a time, each after four dwells, and not while arrivals rise. Between the thresholds nothing moves.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from daemon.planning.live_bounds import LiveBounds
from daemon.planning.profile import Profile
from daemon.strategy.load import RISING, Load, LoadSample
from daemon.workers.states import WorkerState
from daemon.workers.view import WorkerView
from engine.messages import Knobs

STEPS = 5  # with both ends
FULL = 0.9  # of the streams a step allows: more, and it goes up
ROOMY = 0.6  # of those a lower step allows: less, and it comes down
PATIENCE = 4  # dwells before each step below the plan's own place: the plan foresees what is not there yet
_PAGES_FULL = 0.97  # more streams would only wait for pages


@dataclass(slots=True)
class _Standing:
    """Where one model stands."""

    bounds: LiveBounds
    nominal: Knobs
    own: int  # the step of the plan's own place
    step: int
    full_mono: float  # when a lower step was last too small, or the last move
    reason: str
    drains: bool = False  # a plan for fewer streams waits until what came before it is through
    load: Load = field(default_factory=Load)
    full_arrivals_per_s: float = 0.0  # at full_mono

    def is_full(self, now: float) -> None:
        self.full_mono, self.full_arrivals_per_s = now, self.load.arrivals_per_s


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

    def widest(self, model: str) -> Knobs | None:
        """The throughput end of where the model stands; None where load does not move it."""
        standing = self._standings.get(model)
        return None if standing is None else standing.bounds.throughput

    def load_of(self, model: str) -> Load | None:
        standing = self._standings.get(model)
        return None if standing is None else standing.load

    def keep(self, models: Collection[str]) -> None:
        """Forget all others."""
        for model in self._standings.keys() - set(models):
            del self._standings[model]

    def _begin(self, profile: Profile, bounds: LiveBounds, now: float, before: _Standing | None) -> _Standing:
        """At the step nearest to the plan's own knobs, or above it until the load of before is through."""
        own = _nearest(bounds, profile.knobs.max_running)
        standing = _Standing(
            bounds, profile.knobs, own, own, now, f"the plan's own place, {profile.knobs.max_running:,} streams"
        )
        if before is not None:
            load = standing.load = before.load
            wanted = _first_with_room(bounds, load.pressing(bounds.at(_position(own)).max_running), 0)
            if wanted > own:
                standing.step, standing.drains = max(wanted, before.step), True
                standing.reason = f"load: {load}, more than the plan's own place has room for until they are through"
        self._standings[profile.model] = standing
        return standing

    def _move(self, standing: _Standing, now: float) -> None:
        load, bounds = standing.load, standing.bounds
        allowed = bounds.at(_position(standing.step)).max_running
        pressing = load.pressing(allowed)
        if pressing > FULL * allowed and standing.step < STEPS - 1:
            standing.is_full(now)
            if load.pages_share > _PAGES_FULL:
                return
            step = _first_with_room(bounds, pressing, standing.step + 1)
            told = f"more than {FULL:.0%} of the {allowed:,} allowed"
        else:
            step = self._lower(standing, now)
            if step >= standing.step:
                return
            lower = bounds.at(_position(step)).max_running
            told = f"at most {ROOMY:.0%} of the {lower:,} that {_spelled(step)} allows"
        standing.reason = f"load: {load}, {told}; from {_spelled(standing.step)} to {_spelled(step)}"
        standing.step = step
        standing.is_full(now)

    def _lower(self, standing: _Standing, now: float) -> int:
        """The step that it is time to come down to; its own where it is not."""
        load, bounds, here = standing.load, standing.bounds, standing.step
        wanted = load.steady if standing.drains else max(load.expected, load.steady)
        step = _first_with_room(bounds, wanted * FULL / ROOMY, 0)
        if here > standing.own:
            step = here if standing.drains and step > standing.own else max(step, standing.own)
            patience_s = 0.0 if standing.drains else bounds.dwell_s
        else:
            step = max(step, here - 1)
            patience_s = PATIENCE * bounds.dwell_s
            if load.rise > RISING or load.has_risen_from(standing.full_arrivals_per_s):
                step = here
        if step >= here:
            standing.is_full(now)
        elif now - standing.full_mono >= patience_s:
            if standing.drains:
                standing.drains = False
                load.forget_past()
            return step
        return here


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
