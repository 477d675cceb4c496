"""MakingRoom: memory for a worker that is to start, from those that sleep and from idle on-demand models."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from daemon.planning.profile import Profile
from daemon.strategy.leaving import Leaving
from daemon.strategy.on_demand import OnDemand
from daemon.strategy.resting import Resting, held_bytes
from daemon.strategy.room import no_room
from daemon.strategy.switch import Room
from daemon.workers.view import WorkerView
from engine.errors import NotReady

_NOT_COMING_S = 60.0  # a retry so far off tells a request that nothing is on its way


class MakingRoom:
    """Owner: the PlanController. Event loop only."""

    def __init__(
        self,
        room: Room,
        leaving: Leaving,
        resting: Resting,
        on_demand: OnDemand,
        put_away: Callable[[WorkerView, str, float | None], Awaitable[None]],
    ) -> None:
        self._room = room
        self._leaving = leaving
        self._resting = resting
        self._on_demand = on_demand
        self._put_away = put_away

    async def made(
        self,
        profile: Profile,
        views: Mapping[str, WorkerView],
        promised: Mapping[str, int],
        sleeper: WorkerView | None,
    ) -> bool:
        """Whether a model has room now; else those that sleep go, and for one that was asked for the idle ones sleep.

        promised: by worker, what it may grow to. sleeper: the one that is to be woken for it.
        Raises: NotReady where an on-demand model has to wait for others, or waits in vain
        """
        room = await asyncio.to_thread(self._room, profile, list(views.values()), promised, held_bytes(sleeper))
        if room.fits or self._room is no_room:
            return True
        if len(self._leaving) or await self._resting.is_going(views.values()):
            return False
        if (oldest := self._resting.oldest(views, profile.device, sleeper)) is not None:
            self._leaving.leave(oldest, f"its memory is wanted for {profile.model}: {room.reason}")
            return False
        if profile.on_demand is None:
            return True  # its plan was made for the machine: if that was wrong, the worker says so
        idle = self._on_demand.least_valuable(views.values())
        if idle is None:
            asked = f"the model {profile.model!r} was asked for and is not loaded: {room.reason}, and"
            if self._on_demand.may_be_put_away(views.values()):
                raise NotReady(f"{asked} no other on-demand model is idle.", "Try again shortly.", retry_after_s=5.0)
            raise NotReady(
                f"{asked} nothing is loaded that could be put away for it.",
                "An operator can plan it smaller, or load less beside it.",
                retry_after_s=_NOT_COMING_S,
            )
        self._on_demand.put_away(idle.model)
        await self._put_away(idle, f"it makes room for {profile.model}, which was asked for: {room.reason}", None)
        return False
