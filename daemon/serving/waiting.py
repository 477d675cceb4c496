"""A request for a model that is being loaded waits for it, and says what it waits for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from engine.errors import NotReady

if TYPE_CHECKING:
    from daemon.router import Replica

LOOK_EVERY_S = 0.05
NOT_COMING_S = 60.0  # a router that asks for so much patience sees nothing on its way

OnWait = Callable[[str], None]  # told in a sentence what is waited for; with "" when it is over


def unheard(told: str) -> None:
    """For who cannot pass on what is waited for."""


async def replica_when_ready(
    find: Callable[[], Replica],
    within_s: float,
    on_wait: OnWait = unheard,
    wanted: Callable[[], bool] = lambda: True,
) -> Replica:
    """What find() gives once it raises no NotReady any more.

    wanted: False once nothing is waited for, as the daemon stops
    Blocks: while the model is on its way, up to within_s

    Raises: NotReady when time is up or nothing is on its way; whatever else find() raises
    """
    until = time.monotonic() + within_s
    waited = False
    try:
        while True:
            try:
                return find()
            except NotReady as error:
                coming = (error.retry_after_s or 0.0) < NOT_COMING_S
                if not coming or time.monotonic() >= until or not wanted():
                    raise
                waited = True
                on_wait(error.message)
            await asyncio.sleep(LOOK_EVERY_S)
    finally:
        if waited:
            on_wait("")
