"""Small chores beside the serving: names of imported models kept at hand, what is old forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import structlog

from daemon.events import EventLog
from daemon.machine_watch import MachineWatch
from engine.errors import BayardError

DAY_S = 86_400.0

log = structlog.get_logger("bayard.upkeep")


class Upkeep:
    """Owner: the Appliance. names and aliases read what the registry holds, forget deletes; all of them may block.

    others: chores of other parts, by what they do
    """

    def __init__(
        self,
        events: EventLog,
        names: Callable[[], list[str]],
        machine: MachineWatch,
        aliases: Callable[[], dict[str, str]],
        forget: Callable[[], object],
        others: Mapping[str, Callable[[], Coroutine[Any, Any, None]]] | None = None,
    ) -> None:
        self._events = events
        self._names = names
        self._read_aliases = aliases
        self._forget = forget
        self._aliases: dict[str, str] = {}
        self._machine = machine
        self._others = others or {}
        self._imported: list[str] = []
        self._tasks: list[asyncio.Task[None]] = []

    def imported(self) -> list[str]:
        """As of the newest change: asking the store would hold up the event loop."""
        return self._imported

    def aliases(self) -> dict[str, str]:
        """As imported, of the other names."""
        return self._aliases

    async def start(self) -> None:
        self._imported = await asyncio.to_thread(self._names)
        self._aliases = await asyncio.to_thread(self._read_aliases)
        chores = {
            "follow models": self._follow_models,
            "forget what is old": self._forget_old,
            "follow the machine": self._machine.follow,
            **self._others,
        }
        for name, chore in chores.items():
            self._tasks.append(asyncio.create_task(_kept(name, chore), name=name))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _follow_models(self) -> None:
        with self._events.subscription() as events:
            async for event in events:
                if event.kind == "model":
                    await self._refresh()

    async def _refresh(self) -> None:
        try:
            self._imported = await asyncio.to_thread(self._names)
            self._aliases = await asyncio.to_thread(self._read_aliases)
        except BayardError as error:  # the next change asks again
            log.warning("model_names_not_read", error=str(error))

    async def _forget_old(self) -> None:
        """Once a day of the machine's own time: a clock that jumps ahead makes nothing older at once."""
        while True:
            try:
                told = await asyncio.to_thread(self._forget)
                log.info("old_forgotten", what=str(told))
            except (BayardError, OSError) as error:  # tomorrow again
                log.warning("old_not_forgotten", error=str(error))
            await asyncio.sleep(DAY_S)


async def _kept(name: str, chore: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """The border of a chore's task: it ends, the daemon serves on, and the log says so."""
    try:
        await chore()
    except Exception:
        log.exception("chore_ended", chore=name)
