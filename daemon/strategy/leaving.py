"""Leaving: workers that are drained and ended without holding up the tick."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import structlog

from daemon.events import EventLog
from daemon.workers.view import WorkerView

log = structlog.get_logger("bayard.strategy")


class EndsWorkers(Protocol):
    async def unwant(self, name: str, drain_s: float | None, reason: str) -> None: ...


class Leaving:
    """Owner: the PlanController. Event loop only."""

    def __init__(self, workers: EndsWorkers, events: EventLog, on_problem: Callable[[str], None]) -> None:
        self._workers = workers
        self._events = events
        self._on_problem = on_problem
        self._models: dict[asyncio.Task[None], str] = {}

    def __contains__(self, worker: str) -> bool:
        return any(task.get_name() == worker for task in self._models)

    def __len__(self) -> int:
        return len(self._models)

    def leave(self, view: WorkerView, reason: str) -> None:
        """Drain a worker and end it."""
        if view.name in self:
            return
        self._events.publish("worker", view.name, "wanted", "unwanted", reason)
        task = asyncio.create_task(self._workers.unwant(view.name, None, reason), name=view.name)
        self._models[task] = view.model
        task.add_done_callback(self._left)

    async def of(self, model: str, timeout_s: float) -> None:
        """Blocks: until the model's workers are gone, or the time is over."""
        mine = [task for task, of in self._models.items() if of == model]
        if mine:
            await asyncio.wait(mine, timeout=timeout_s)

    async def cancel(self) -> None:
        """Wait for none of them; the supervisor ends them."""
        for task in self._models:
            task.cancel()
        await asyncio.gather(*self._models, return_exceptions=True)

    def _left(self, task: asyncio.Task[None]) -> None:
        self._models.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("drain_failed", worker=task.get_name(), error=str(error))
            self._on_problem(f"worker {task.get_name()} could not be drained: {error}")
