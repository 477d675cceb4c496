"""Files and batches in the store: rows in, frozen records out. Every look-up is one tenant's."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from daemon.batches.records import BatchRecord, BatchState, FileRecord, LineError
from daemon.store.schema import Batch, UploadedFile
from engine.errors import NotFound

OVER = tuple(state for state in BatchState if state.over)


def add_file(session: Session, record: FileRecord) -> None:
    session.add(
        UploadedFile(
            id=record.id, tenant_id=record.tenant_id, purpose=record.purpose, filename=record.filename,
            size_bytes=record.size_bytes, created_at=record.created_at, expires_at=record.expires_at,
        )
    )  # fmt: skip


def find_file(session: Session, tenant_id: str, file_id: str) -> FileRecord:
    """Raises: NotFound"""
    row = session.get(UploadedFile, file_id)
    if row is None or row.tenant_id != tenant_id:
        raise NotFound(f"There is no file {file_id[:64]!r}.", "GET /v1/files lists those there are.", param="id")
    return _file(row)


def list_files(session: Session, tenant_id: str) -> list[FileRecord]:
    """Oldest first."""
    query = (
        select(UploadedFile)
        .where(UploadedFile.tenant_id == tenant_id)
        .order_by(UploadedFile.created_at, UploadedFile.id)
    )
    return [_file(row) for row in session.scalars(query)]


def stored_bytes(session: Session, tenant_id: str) -> int:
    query = select(func.coalesce(func.sum(UploadedFile.size_bytes), 0)).where(UploadedFile.tenant_id == tenant_id)
    return int(session.scalar(query) or 0)


def delete_file(session: Session, tenant_id: str, file_id: str) -> FileRecord:
    """Raises: NotFound"""
    record = find_file(session, tenant_id, file_id)
    session.execute(delete(UploadedFile).where(UploadedFile.id == file_id))
    return record


def users_of(session: Session, file_id: str) -> list[str]:
    """Batches that still read the file."""
    query = select(Batch.id).where(Batch.input_file_id == file_id, Batch.state.not_in(OVER))
    return list(session.scalars(query))


def forget_expired(session: Session, now: datetime, batches_before: datetime) -> list[str]:
    """Drop files whose time is over and batches that ended long ago. The ids of the files."""
    used = set(session.scalars(select(Batch.input_file_id).where(Batch.state.not_in(OVER))))
    found = set(session.scalars(select(UploadedFile.id).where(UploadedFile.expires_at < now))) - used
    session.execute(delete(UploadedFile).where(UploadedFile.id.in_(found)))
    session.execute(delete(Batch).where(Batch.state.in_(OVER), Batch.created_at < batches_before))
    return sorted(found)


def all_file_ids(session: Session) -> set[str]:
    return set(session.scalars(select(UploadedFile.id)))


def add_batch(session: Session, record: BatchRecord) -> None:
    session.add(Batch(id=record.id, **_columns(record)))


def save_batch(session: Session, record: BatchRecord) -> None:
    """Raises: NotFound where its tenant was deleted"""
    row = session.get(Batch, record.id)
    if row is None:
        raise NotFound(f"The batch {record.id} is gone.")
    for name, value in _columns(record).items():
        setattr(row, name, value)


def find_batch(session: Session, tenant_id: str, batch_id: str) -> BatchRecord:
    """Raises: NotFound"""
    row = session.get(Batch, batch_id)
    if row is None or row.tenant_id != tenant_id:
        raise NotFound(f"There is no batch {batch_id[:64]!r}.", "GET /v1/batches lists those there are.", param="id")
    return _batch(row)


def list_batches(session: Session, tenant_id: str) -> list[BatchRecord]:
    """Newest first."""
    query = select(Batch).where(Batch.tenant_id == tenant_id).order_by(Batch.created_at.desc(), Batch.id)
    return [_batch(row) for row in session.scalars(query)]


def open_batches(session: Session) -> list[BatchRecord]:
    """Of every tenant, oldest first."""
    query = select(Batch).where(Batch.state.not_in(OVER)).order_by(Batch.created_at, Batch.id)
    return [_batch(row) for row in session.scalars(query)]


def _file(row: UploadedFile) -> FileRecord:
    return FileRecord(row.id, row.tenant_id, row.purpose, row.filename, row.size_bytes, row.created_at, row.expires_at)


def _columns(record: BatchRecord) -> dict[str, Any]:
    errors = [[error.code, error.message, error.line, error.param] for error in record.errors]
    return {
        "tenant_id": record.tenant_id,
        "key_id": record.key_id,
        "endpoint": record.endpoint,
        "input_file_id": record.input_file_id,
        "output_file_id": record.output_file_id,
        "error_file_id": record.error_file_id,
        "completion_window": record.completion_window,
        "state": str(record.state),
        "total": record.total,
        "completed": record.completed,
        "failed": record.failed,
        "errors_json": json.dumps(errors),
        "metadata_json": json.dumps(record.metadata),
        "moments_json": json.dumps({state: at.isoformat() for state, at in record.moments.items()}),
        "created_at": record.created_at,
        "expires_at": record.expires_at,
    }


def _batch(row: Batch) -> BatchRecord:
    return BatchRecord(
        id=row.id,
        tenant_id=row.tenant_id,
        key_id=row.key_id,
        endpoint=row.endpoint,
        input_file_id=row.input_file_id,
        completion_window=row.completion_window,
        state=BatchState(row.state),
        created_at=row.created_at,
        expires_at=row.expires_at,
        output_file_id=row.output_file_id,
        error_file_id=row.error_file_id,
        total=row.total,
        completed=row.completed,
        failed=row.failed,
        errors=tuple(LineError(*error) for error in json.loads(row.errors_json)),
        metadata=json.loads(row.metadata_json),
        moments={state: datetime.fromisoformat(at) for state, at in json.loads(row.moments_json).items()},
    )
