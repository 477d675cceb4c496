"""Between a worker and the router: a loaded process is given requests, and streams of one that ended are told why."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from daemon.workers.incarnation import Incarnation
from engine.errors import BayardError, WorkerLost
from engine.messages import ErrorInfo, WorkerConfig, WorkerReady

if TYPE_CHECKING:
    from engine.client import EngineClient


class Traffic(Protocol):
    """Who sends requests to ready workers: the router."""

    def start_text(self, path: str) -> None: ...
    async def add(self, worker: str, config: WorkerConfig, client: EngineClient, ready: WorkerReady) -> None: ...
    def remove(self, worker: str) -> None: ...
    def forget_text(self, path: str) -> None: ...


async def open_traffic(
    traffic: Traffic, now: Incarnation, worker: str, config: WorkerConfig, stop: asyncio.Event
) -> bool:
    """Give a loaded process to the router, watching it meanwhile; False if stop was asked.

    Raises: WorkerLost, WorkerStalled
    """
    assert now.ready is not None
    adding = asyncio.ensure_future(traffic.add(worker, config, now.client, now.ready))
    watching = asyncio.ensure_future(now.until_over(stop))
    try:
        await asyncio.wait({adding, watching}, return_when=asyncio.FIRST_COMPLETED)
        if watching.done():
            watching.result()
            return False
        await _as_worker_error(adding)
        return True
    finally:
        for task in (adding, watching):
            task.cancel()
        await asyncio.gather(adding, watching, return_exceptions=True)


async def _as_worker_error(adding: asyncio.Future[None]) -> None:
    """A tokenizer that cannot be loaded ends this start like any other cause."""
    try:
        await adding
    except BayardError:
        raise
    except Exception as error:
        raise WorkerLost(f"the text side of the model could not be loaded: {type(error).__name__}: {error}") from error


def error_for_streams(worker: str, failure: BayardError | None) -> ErrorInfo:
    """What every open stream of a process that ended is told. failure None: it was asked to end."""
    if failure is None:
        return ErrorInfo("draining", f"Worker {worker} was stopped before this request had ended.", "Send it again.")
    return ErrorInfo(failure.code, f"Worker {worker} {failure.message}.", "Send the request again.")
