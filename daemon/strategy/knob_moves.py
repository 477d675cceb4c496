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
        self._tell(view, knobs, reason, "knobs" if move is None else "load")
        return 1

    async def widen(self, view: WorkerView, why: str) -> None:
        """For one that another is to replace: with all the streams it may have it is through sooner."""
        knobs = self._load.widest(view.model)
        if knobs is not None and view.inflight and knobs.max_running > view.config.knobs.max_running:
            await self._workers.set_knobs(view.name, knobs)
            self._tell(view, knobs, f"knobs moved in place; it is being replaced: {why}", "load")

    def _tell(self, view: WorkerView, knobs: Knobs, reason: str, kind: str) -> None:
        self._events.publish("worker", view.name, _spelled(view.config.knobs), _spelled(knobs), reason, move=kind)


def _spelled(knobs: Knobs) -> str:
    guesses = f", {knobs.speculation_tokens} guessed" if knobs.speculation_tokens else ""
    return f"{knobs.max_running} streams, {knobs.prefill_chunk} prompt tokens a step{guesses}"
