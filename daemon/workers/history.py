"""Rows of workers_history: one a start. A database that cannot be written never stops a worker."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import structlog
from sqlalchemy import insert, select, update
from sqlalchemy.orm import Session

from daemon.store.base import utc_now
from daemon.store.schema import WorkerRun
from daemon.store.session import Store
from daemon.workers.view import ExitInfo
from engine.errors import StoreError

log = structlog.get_logger("bayard.workers")


@dataclass(frozen=True, slots=True)
class PastRun:
    worker: str
    model: str
    pid: int | None
    started_at: datetime
    ready_at: datetime | None
    ended_at: datetime | None
    exit_status: int | None
    exit_signal: int | None
    reason: str
    peak_rss_bytes: int | None


class History:
    """Owner: the Supervisor."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def began(self, worker: str, model: str) -> int | None:
        """The number of this run; None if it could not be stored."""
        row = {"worker": worker, "model": model, "started_at": utc_now()}
        try:
            return await self._store.write(lambda session: _insert(session, row))
        except StoreError as error:
            log.error("worker_history_not_stored", worker=worker, error=str(error))
            return None

    def was_ready(self, run_id: int | None, pid: int | None) -> None:
        self._change(run_id, {"ready_at": utc_now(), "pid": pid})

    def ended(self, run_id: int | None, pid: int | None, exit_info: ExitInfo | None, reason: str) -> None:
        info = exit_info or ExitInfo()
        self._change(
            run_id,
            {
                "pid": pid,
                "ended_at": utc_now(),
                "exit_status": info.status,
                "exit_signal": info.signal,
                "peak_rss_bytes": info.peak_rss_bytes,
                "reason": reason,
            },
        )

    async def of(self, worker: str, limit: int = 20) -> list[PastRun]:
        """Newest first."""
        return await self._store.read(lambda session: _past(session, worker, limit))

    def _change(self, run_id: int | None, values: dict[str, object]) -> None:
        if run_id is None:
            return
        try:
            done = self._store.enqueue(lambda session: _update(session, run_id, values))
        except StoreError as error:
            log.error("worker_history_not_stored", run=run_id, error=str(error))
            return
        done.add_done_callback(lambda future: _note(run_id, future.exception()))


def _note(run_id: int, error: BaseException | None) -> None:
    if error is not None:
        log.error("worker_history_not_stored", run=run_id, error=str(error))


def _insert(session: Session, row: dict[str, object]) -> int:
    return int(session.execute(insert(WorkerRun).returning(WorkerRun.id), [row]).scalar_one())


def _update(session: Session, run_id: int, values: dict[str, object]) -> None:
    session.execute(update(WorkerRun).where(WorkerRun.id == run_id).values(**values))


def _past(session: Session, worker: str, limit: int) -> list[PastRun]:
    rows = session.scalars(
        select(WorkerRun).where(WorkerRun.worker == worker).order_by(WorkerRun.id.desc()).limit(limit)
    )
    return [
        PastRun(
            row.worker,
            row.model,
            row.pid,
            row.started_at,
            row.ready_at,
            row.ended_at,
            row.exit_status,
            row.exit_signal,
            row.reason,
            row.peak_rss_bytes,
        )
        for row in rows
    ]
