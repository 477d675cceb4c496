"""Aside: work of the controller's between its ticks, so that nobody waits for the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Protocol

from daemon.strategy.switch import Switch
from daemon.workers.view import WorkerView

FOLLOW_EVERY_S = 0.05


class Views(Protocol):
    def views(self) -> list[WorkerView]: ...


class Aside:
    """Owner: the PlanController. Event loop only."""

    def __init__(self, workers: Views, reconcile: Callable[[str], Awaitable[None]]) -> None:
        self._workers = workers
        self._reconcile = reconcile
        self._tasks: set[asyncio.Task[None]] = set()

    def now(self, cause: str) -> None:
        self._begin(self._once(cause), cause)

    def follow(self, current: Callable[[], Switch | None]) -> None:
        """Take a switch's next step whenever its workers have moved, until it is over."""
        self._begin(self._follow(current), "a switch")

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _once(self, cause: str) -> None:
        await self._reconcile(cause)

    async def _follow(self, current: Callable[[], Switch | None]) -> None:
        while (switch := current()) is not None:
            before = self._states_of(switch)
            while before == self._states_of(switch) and current() is switch:  # noqa: ASYNC110 - views tell no changes
                await asyncio.sleep(FOLLOW_EVERY_S)
            await self._reconcile(f"a switch of {switch.model}")

    def _states_of(self, switch: Switch) -> list[tuple[object, ...]]:
        names = (switch.old, switch.new)
        return [(view.name, view.state, view.pid) for view in self._workers.views() if view.name in names]

    def _begin(self, work: Coroutine[None, None, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
