"""The log of state changes: every one kept in order, stored, and offered live to subscribers."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import structlog
from sqlalchemy import func, insert, select
from sqlalchemy.orm import Session

from daemon.store.base import utc_now
from daemon.store.schema import EventRow
from daemon.store.session import Store
from engine.errors import StoreError

KEPT_IN_MEMORY = 1_000
SUBSCRIBER_QUEUE = 1_000

log = structlog.get_logger("bayard.events")


@dataclass(frozen=True, slots=True)
class Event:
    id: int
    at: datetime
    kind: str  # "worker", "plan", "model", "schedule", "appliance", ...
    subject: str
    from_state: str | None
    to_state: str | None
    reason: str = ""
    fields: dict[str, Any] = field(default_factory=dict)


class EventLog:
    """Ids rise by one and never repeat, so a reader resumes after the last id it saw.

    publish is safe from any thread and never waits: rows are written behind, in order, many in one transaction.
    Owner: the Appliance, or an offline command.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._recent: deque[Event] = deque(maxlen=KEPT_IN_MEMORY)
        self._unwritten: list[Event] = []
        self._write_planned = False
        self._subscribers: list[tuple[asyncio.AbstractEventLoop, asyncio.Queue[Event | None]]] = []
        self.unwritten_failures = 0
        stored, last_id = store.read_sync(_newest)
        self._recent.extend(stored)
        self._next_id = last_id + 1

    def publish(
        self,
        kind: str,
        subject: str,
        from_state: str | None = None,
        to_state: str | None = None,
        reason: str = "",
        **fields: Any,
    ) -> Event:
        """Record one change. fields must be JSON-able."""
        json.dumps(fields)  # a mistake of the caller shows here, not behind its back on the writer thread
        with self._lock:
            event = Event(self._next_id, utc_now(), kind, subject, from_state, to_state, reason, fields)
            self._next_id += 1
            self._recent.append(event)
            self._unwritten.append(event)
            plan_write, self._write_planned = not self._write_planned, True
            for loop, queue in self._subscribers:
                if not loop.is_closed():
                    loop.call_soon_threadsafe(_offer, queue, event)
        log.info(f"{kind}_changed", subject=subject, from_state=from_state, to_state=to_state, reason=reason, **fields)
        if plan_write:
            self._write_behind()
        return event

    @property
    def unwritten(self) -> int:
        """Events that the store refused the last time, and that wait for the next."""
        with self._lock:
            return 0 if self._write_planned else len(self._unwritten)

    def recent(self, after_id: int = 0, limit: int = 200) -> list[Event]:
        """The newest of those kept in memory with an id above after_id, oldest first."""
        with self._lock:
            found = [event for event in self._recent if event.id > after_id]
        return found[-limit:]

    @contextmanager
    def subscription(self, after_id: int | None = None) -> Iterator[AsyncIterator[Event]]:
        """Events from now on, after those kept with an id above after_id. Ends when the log closes.

        A reader that falls more than SUBSCRIBER_QUEUE events behind is ended, so that it reconnects and resumes.
        """
        queue: asyncio.Queue[Event | None] = asyncio.Queue(SUBSCRIBER_QUEUE)
        entry = (asyncio.get_running_loop(), queue)
        with self._lock:
            backlog = [] if after_id is None else [event for event in self._recent if event.id > after_id]
            self._subscribers.append(entry)
        try:
            yield _stream(backlog, queue)
        finally:
            with self._lock:
                self._subscribers = [other for other in self._subscribers if other is not entry]

    def close(self) -> None:
        """End every subscription; the store writes what is left when it closes."""
        with self._lock:
            for loop, queue in self._subscribers:
                if not loop.is_closed():
                    loop.call_soon_threadsafe(_end, queue)

    def _write_behind(self) -> None:
        try:
            future = self._store.enqueue(self._write)
        except StoreError as error:
            self._note_failure(error)
            return
        future.add_done_callback(self._written)

    def _write(self, session: Session) -> int:
        with self._lock:
            self._write_planned = False
            batch = list(self._unwritten)
        if batch:
            session.execute(insert(EventRow), [_row(event) for event in batch])
        return len(batch)

    def _written(self, done: Future[int]) -> None:
        """Runs on the writer thread before its next write: only what is surely stored is forgotten."""
        error = done.exception()
        if error is not None:
            self._note_failure(error)
            return
        with self._lock:
            self._unwritten = self._unwritten[done.result() :]

    def _note_failure(self, error: BaseException) -> None:
        """What could not be stored waits for the next publish; the oldest go first if there are too many."""
        with self._lock:
            self._write_planned = False
            self._unwritten = self._unwritten[-KEPT_IN_MEMORY:]
        self.unwritten_failures += 1
        log.error("events_not_stored", error=str(error), failures=self.unwritten_failures)


async def _stream(backlog: list[Event], queue: asyncio.Queue[Event | None]) -> AsyncIterator[Event]:
    for event in backlog:
        yield event
    while (item := await queue.get()) is not None:
        yield item


def _offer(queue: asyncio.Queue[Event | None], event: Event) -> None:
    if queue.full():
        _end(queue)
    else:
        queue.put_nowait(event)


def _end(queue: asyncio.Queue[Event | None]) -> None:
    while queue.full():
        queue.get_nowait()
    queue.put_nowait(None)


def _row(event: Event) -> dict[str, Any]:
    return {
        "id": event.id,
        "at": event.at,
        "kind": event.kind,
        "subject": event.subject,
        "from_state": event.from_state,
        "to_state": event.to_state,
        "reason": event.reason,
        "fields_json": json.dumps(event.fields),
    }


def _newest(session: Session) -> tuple[list[Event], int]:
    rows = session.scalars(select(EventRow).order_by(EventRow.id.desc()).limit(KEPT_IN_MEMORY)).all()
    events = [
        Event(
            row.id, row.at, row.kind, row.subject, row.from_state, row.to_state, row.reason, json.loads(row.fields_json)
        )
        for row in reversed(rows)
    ]
    return events, session.scalar(select(func.max(EventRow.id))) or 0
