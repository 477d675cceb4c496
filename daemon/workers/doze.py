"""doze: a process that sleeps: it has given memory back, beats on, and is woken or ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import StrEnum

import msgspec

from daemon.workers.incarnation import Incarnation, while_alive
from daemon.workers.states import WorkerState
from engine.errors import BayardError
from engine.messages import Woken, WorkerConfig


class Asked(StrEnum):
    SLEEP = "sleep"  # on
    WAKE = "wake"
    END = "end"


async def doze(
    now: Incarnation,
    stop: asyncio.Event,
    asked: Callable[[], Asked],
    become: Callable[..., None],
    reason: Callable[[], str],
) -> Woken | str:
    """From drained to warm; or what is to be said beside the reason, where the process is to end.

    stop: set whenever asked() may have changed. become: with a state, a reason and fields of the event.
    One that is lost asleep serves nobody: that is no failure, and waking it starts another.
    Raises: BayardError if it is lost while it wakes
    """
    try:
        slept = await while_alive(now, now.client.sleep())
        if slept.error is not None:
            return f"its process ends: {slept.error.message}"
        moved = {"pool_bytes": slept.pool_bytes, "moved_bytes": slept.moved_bytes, "took_s": slept.took_s}
        become(WorkerState.SLEEPING, reason(), **moved)
        while asked() is Asked.SLEEP:
            stop.clear()
            await now.until_over(stop)
    except BayardError as error:
        return f"asleep it {error.message}"
    if asked() is Asked.END:
        return ""
    stop.clear()
    become(WorkerState.WARMING, reason())
    woken = await while_alive(now, now.client.wake())
    return woken if woken.error is None else f"it could not be woken: {woken.error.message}"


def same_but_knobs(config: WorkerConfig, running: WorkerConfig) -> bool:
    """Whether what runs is what is asked for, its knobs apart."""
    return msgspec.structs.replace(config, knobs=running.knobs) == running
