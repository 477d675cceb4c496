"""What is old is forgotten, what is young stays, and the audit stays whole."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from daemon.settings import RetentionSettings
from daemon.store.retention import Forgotten, forget, forget_copies, forget_oldest
from daemon.store.schema import AuditEntry, EventRow, UsageMinute, WorkerRun
from daemon.store.session import Store
from daemon.tenants import audit
from daemon.tenants.principal import Actor

NOW = datetime(2026, 6, 1, tzinfo=UTC)


def fill(session: Session) -> None:
    for days in (1, 50, 500):
        at = NOW - timedelta(days=days)
        session.add(UsageMinute(minute_at=at, tenant_id="t", key_id="k", model="m"))
        session.add(EventRow(at=at, kind="worker", subject="w"))
        session.add(WorkerRun(worker="w", model="m", started_at=at))
    audit.append(session, Actor("a", "b"), "x", "y")


def counts(session: Session) -> list[int]:
    tables = (UsageMinute, EventRow, WorkerRun, AuditEntry)
    return [int(session.scalar(select(func.count()).select_from(table)) or 0) for table in tables]


def test_old_rows_go_and_the_audit_stays(store: Store) -> None:
    store.write_sync(fill)
    settings = RetentionSettings(usage_days=400, events_days=30, runs_days=400)
    assert store.write_sync(lambda session: forget(session, settings, NOW)) == Forgotten(1, 2, 1)
    assert store.read_sync(counts) == [2, 1, 2, 1]
    assert store.write_sync(lambda session: forget(session, settings, NOW)) == Forgotten(0, 0, 0)
    assert store.read_sync(audit.verify).broken_at is None


def test_oldest_copies_go_and_an_operators_backups_stay(tmp_path: Path) -> None:
    for age, name in enumerate(("before-c.db", "before-b.db", "before-a.db", "bayard-x.backup")):
        path = tmp_path / name
        path.write_bytes(b"x")
        os.utime(path, (1_000_000 - age, 1_000_000 - age))
    (tmp_path / "before-a.db-wal").write_bytes(b"x")
    assert [path.name for path in forget_copies(tmp_path, 2)] == ["before-a.db"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bayard-x.backup", "before-b.db", "before-c.db"]


def test_oldest_folders_and_bundles_go(tmp_path: Path) -> None:
    for age in range(3):
        folder = tmp_path / f"before-restore-{age}.files"
        folder.mkdir()
        (folder / "x").write_bytes(b"x")
        os.utime(folder, (1_000_000 - age, 1_000_000 - age))
    assert [path.name for path in forget_oldest(tmp_path, "before-restore-*.files", 2)] == ["before-restore-2.files"]
    assert forget_oldest(tmp_path / "none", "*", 2) == []
    assert len(list(tmp_path.iterdir())) == 2
