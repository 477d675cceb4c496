"""Requests that a lost worker had not begun are sent to another, or to the same once it is up again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from engine.errors import AdmissionError, ModelNotFound
from engine.messages import FinishReason, TokenDelta

if TYPE_CHECKING:
    from daemon.router import Replica

MOST_TRIES = 3
LOOK_EVERY_S = 0.05
LATCHED_RETRY_S = 60.0  # a router that asks for so much patience sees nothing on its way
_WORKERS_FAULT = frozenset({"worker_lost", "worker_stalled", "draining", "device_lost"})

log = structlog.get_logger(__name__)
Deltas = AsyncGenerator[tuple[int, TokenDelta], None]


@dataclass(frozen=True, slots=True)
class Retry:
    """When and where a request may be tried again. within_s: how long a replica is waited for."""

    find: Callable[[], Replica]  # raises NotReady and ModelNotFound, as Router.replica_for
    wanted: Callable[[], bool]  # False once nobody waits for it: cancelled, or the daemon stops
    within_s: float

    async def replica(self, deadline_mono: float | None) -> Replica | None:
        """Another replica; None if none came in time. Blocks: while one is on its way"""
        until = time.monotonic() + self.within_s
        if deadline_mono is not None:
            until = min(until, deadline_mono)
        while self.wanted():
            try:
                return self.find()
            except ModelNotFound:
                return None
            except AdmissionError as error:
                if (error.retry_after_s or 0.0) >= LATCHED_RETRY_S or time.monotonic() >= until:
                    return None
            await asyncio.sleep(LOOK_EVERY_S)
        return None


async def begun_once(
    submit: Callable[[], Deltas], retry: Retry, use: Callable[[Replica], None], deadline_mono: float | None
) -> Deltas:
    """The deltas of submit(); while not one token has come, a worker's fault makes it begin anew elsewhere.

    use: told of the replica that the next submit() is to go to
    """
    for attempt in range(1, MOST_TRIES + 1):
        lost: tuple[int, TokenDelta] | None = None
        async with aclosing(submit()) as deltas:
            async for index, delta in deltas:
                if _is_fault(delta) and attempt < MOST_TRIES and retry.wanted():
                    lost = (index, delta)
                    break
                yield index, delta
                if delta.token_ids or delta.finish is not None:
                    async for rest in deltas:
                        yield rest
                    return
        if lost is None:
            return
        replica = await retry.replica(deadline_mono)
        if replica is None:
            yield lost
            return
        log.info("request_tried_again", worker=replica.worker, attempt=attempt + 1, after=_code(lost[1]))
        use(replica)


def _is_fault(delta: TokenDelta) -> bool:
    """Of the worker, before anything of the request was done: an answer that holds a token is not asked for again."""
    return not delta.token_ids and delta.finish is FinishReason.ERROR and _code(delta) in _WORKERS_FAULT


def _code(delta: TokenDelta) -> str:
    return delta.error.code if delta.error is not None else ""
