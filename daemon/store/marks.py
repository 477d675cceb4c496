"""Marks: what operators have said of a thing until further notice, over restarts. Owner of table marks."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from daemon.store.schema import MarkRow
from daemon.store.session import Store


class MarkKind(StrEnum):
    DRAINED = "drained"  # of a device, as a worker's configuration names it
    ACKNOWLEDGED = "acknowledged"  # of what needs attention, by its id


@dataclass(frozen=True, slots=True)
class Mark:
    subject: str
    reason: str
    by: str
    at: datetime


class Marks:
    """Blocks: every method waits for the store. Call from threads, never from the event loop."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def all(self, kind: MarkKind) -> dict[str, Mark]:
        """By subject."""

        def read(session: Session) -> dict[str, Mark]:
            rows = session.scalars(select(MarkRow).where(MarkRow.kind == kind).order_by(MarkRow.subject))
            return {row.subject: Mark(row.subject, row.reason, row.made_by, row.made_at) for row in rows}

        return self._store.read_sync(read)

    def set(self, kind: MarkKind, mark: Mark) -> None:
        """In place of one that is there."""

        def write(session: Session) -> None:
            session.merge(
                MarkRow(kind=kind, subject=mark.subject, reason=mark.reason, made_by=mark.by, made_at=mark.at)
            )

        self._store.write_sync(write)

    def clear(self, kind: MarkKind, subjects: Collection[str]) -> None:
        """Harmless where there is none."""

        def write(session: Session) -> None:
            session.execute(delete(MarkRow).where(MarkRow.kind == kind, MarkRow.subject.in_(subjects)))

        if subjects:
            self._store.write_sync(write)
