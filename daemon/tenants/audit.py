"""The audit log: append-only, each entry's hash covers the one before, so that a removed line shows."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from daemon.store.base import utc_now
from daemon.store.schema import AuditEntry
from daemon.tenants.principal import Actor

FIRST_HASH = "0" * 64
_PAGE = 500


@dataclass(frozen=True, slots=True)
class AuditRecord:
    id: int
    at: datetime
    actor: str
    origin: str
    action: str
    subject: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    hash: str


@dataclass(frozen=True, slots=True)
class ChainCheck:
    """broken_at: id of the first entry that does not fit; None: the chain is whole. head: hash of the last good one.

    Kept elsewhere, the head proves later that nothing was cut off at the end: has_kept says whether the chain still has
    it, None where none was asked for.
    """

    entries: int
    broken_at: int | None
    head: str = FIRST_HASH
    has_kept: bool | None = None


def append(
    session: Session,
    actor: Actor,
    action: str,
    subject: str,
    *,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
) -> None:
    """Write one entry in the caller's transaction, so that a change and its record stand or fall together."""
    last = session.scalars(select(AuditEntry).order_by(AuditEntry.id.desc()).limit(1)).first()
    entry = AuditEntry(
        at=utc_now(),
        actor=actor.name,
        origin=actor.origin,
        action=action,
        subject=subject,
        before_json=_dump(before),
        after_json=_dump(after),
        previous_hash=last.hash if last else FIRST_HASH,
    )
    entry.hash = _hash(entry)
    session.add(entry)
    session.flush()


def page(session: Session, *, before_id: int | None = None, limit: int = 100) -> list[AuditRecord]:
    """Newest first."""
    query = select(AuditEntry).order_by(AuditEntry.id.desc()).limit(limit)
    if before_id is not None:
        query = query.where(AuditEntry.id < before_id)
    return [_record(entry) for entry in session.scalars(query)]


def verify(session: Session, kept: str | None = None) -> ChainCheck:
    """Walk the chain from its start. kept: a hash that it is to have. Blocks: in proportion to the log."""
    previous, count = FIRST_HASH, 0
    found = None if kept is None else kept == FIRST_HASH
    for entry in session.scalars(select(AuditEntry).order_by(AuditEntry.id).execution_options(yield_per=_PAGE)):
        count += 1
        if entry.previous_hash != previous or entry.hash != _hash(entry):
            return ChainCheck(count, entry.id, previous, found)
        previous = entry.hash
        found = found if kept is None else found or kept == previous
    return ChainCheck(count, None, previous, found)


def as_dict(record: AuditRecord) -> dict[str, Any]:
    """For JSON."""
    return {**asdict(record), "at": record.at.isoformat()}


def _hash(entry: AuditEntry) -> str:
    covered = [
        entry.previous_hash,
        entry.at.isoformat(),
        entry.actor,
        entry.origin,
        entry.action,
        entry.subject,
        entry.before_json,
        entry.after_json,
    ]
    return hashlib.sha256(json.dumps(covered, ensure_ascii=False).encode()).hexdigest()


def _dump(value: dict[str, Any] | None) -> str | None:
    return None if value is None else json.dumps(value, sort_keys=True, default=str)


def _record(entry: AuditEntry) -> AuditRecord:
    before, after = entry.before_json, entry.after_json
    return AuditRecord(
        id=entry.id,
        at=entry.at,
        actor=entry.actor,
        origin=entry.origin,
        action=entry.action,
        subject=entry.subject,
        before=None if before is None else json.loads(before),
        after=None if after is None else json.loads(after),
        hash=entry.hash,
    )
