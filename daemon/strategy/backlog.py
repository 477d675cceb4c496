"""Backlog: holds a switch to a plan for fewer streams until what the plan before it let in is through.

A worker of few streams beside one that still works off a crowd makes both slow, and where they have no room together
the crowd would wait for the new one. So the old worker goes on, new requests too, while more streams are there than the
new plan has places for; not longer than a minute, as a load that stays is no backlog.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from daemon.events import EventLog
from daemon.planning.profile import Profile
from daemon.workers.states import WorkerState
from daemon.workers.view import WorkerView

LIMIT_S = 60.0


class Backlog:
    """Owner: the PlanController. Event loop only. Nothing of it is stored: a new daemon begins a new wait."""

    def __init__(self, events: EventLog, clock: Callable[[], float] = time.monotonic) -> None:
        self._events = events
        self._clock = clock
        self._waits: dict[str, tuple[str, float]] = {}  # model: the plan it waits for, since when

    def holds(self, profile: Profile, old: WorkerView, plan: str) -> bool:
        """Whether a switch from this worker is better begun later."""
        model, now = profile.model, self._clock()
        places, there = profile.knobs.max_running, old.inflight
        narrower = profile.generates and places < old.config.knobs.max_running
        if old.state is not WorkerState.READY or not narrower or there <= places:
            self._waits.pop(model, None)
            return False
        waiting_for, since = self._waits.get(model, ("", now))
        if waiting_for != plan:
            self._waits[model] = (plan, now)
            self._events.publish(
                "switch", model, None, "waits",
                f"{there:,} streams are there and plan {plan} has {places:,} places: {old.name} works them off first, "
                f"for {LIMIT_S:.0f} s at most",
            )  # fmt: skip
            return True
        return now - since < LIMIT_S

    def forget(self, model: str) -> None:
        """No other shape of it is wanted."""
        self._waits.pop(model, None)
