"""KnobMoves: sets what may change inside a running worker, with an event that says why."""

from __future__ import annotations

from typing import Protocol

from daemon.events import EventLog
from daemon.planning.profile import Profile
from daemon.strategy.load_controller import LoadController
from daemon.workers.view import WorkerView
from engine.messages import Knobs


class KnobWorkers(Protocol):
    async def set_knobs(self, name: str, knobs: Knobs) -> None: ...


class KnobMoves:
    """Owner: the PlanController. Event loop only."""

    def __init__(self, workers: KnobWorkers, events: EventLog, load: LoadController) -> None:
        self._workers = workers
        self._events = events
        self._load = load

    async def bring(self, profile: Profile, view: WorkerView, why: str) -> int:
        """To the plan's own knobs, or those that the load asks for within its bounds; 1 if any had to move."""
        move = self._load.knobs(profile, view)
        knobs = profile.knobs if move is None else move.knobs
        before = view.config.knobs
        if before == knobs:
            return 0
        await self._workers.set_knobs(view.name, knobs)
        reason = f"knobs moved in place; {why}" if move is None else f"knobs moved in place; {move.reason}; {why}"
        kind = "knobs" if move is None else "load"
        self._events.publish("worker", view.name, _spelled(before), _spelled(knobs), reason, move=kind)
        return 1


def _spelled(knobs: Knobs) -> str:
    guesses = f", {knobs.speculation_tokens} guessed" if knobs.speculation_tokens else ""
    return f"{knobs.max_running} streams, {knobs.prefill_chunk} prompt tokens a step{guesses}"
