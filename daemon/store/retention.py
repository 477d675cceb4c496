"""What is forgotten after a while: usage by the minute, events, workers' runs, old copies of the state, bundles.

The audit is kept for good: each of its entries proves those before it, and the database refuses to delete one.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from sqlalchemy import delete
from sqlalchemy.orm import Session

from daemon.settings import RetentionSettings, Settings
from daemon.store.base import utc_now
from daemon.store.schema import EventRow, UsageMinute, WorkerRun
from daemon.store.session import Store

_COPIES = ("before-*.db",)


@dataclass(frozen=True, slots=True)
class Forgotten:
    """How many of each were deleted."""

    usage_minutes: int
    events: int
    runs: int


def forget(session: Session, settings: RetentionSettings, now: datetime) -> Forgotten:
    """Delete what is older than the settings say."""

    def older(days: int) -> datetime:
        return now - timedelta(days=days)

    usage = session.execute(delete(UsageMinute).where(UsageMinute.minute_at < older(settings.usage_days)))
    events = session.execute(delete(EventRow).where(EventRow.at < older(settings.events_days)))
    runs = session.execute(delete(WorkerRun).where(WorkerRun.started_at < older(settings.runs_days)))
    return Forgotten(usage.rowcount, events.rowcount, runs.rowcount)  # type: ignore[attr-defined]  # of its CursorResult


def forget_copies(folder: Path, keep: int) -> list[Path]:
    """Delete the oldest copies beyond `keep`; back-ups that an operator made stay. Blocks. Raises: OSError"""
    copies = sorted(
        (path for pattern in _COPIES for path in folder.glob(pattern)), key=lambda path: path.stat().st_mtime
    )
    doomed = copies[: max(0, len(copies) - keep)]
    for path in doomed:
        for suffix in ("", "-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
    return doomed


def forget_oldest(folder: Path, pattern: str, keep: int) -> list[Path]:
    """Delete the oldest files or folders of that name beyond `keep`. Blocks. Raises: OSError"""
    found = sorted(folder.glob(pattern), key=lambda path: path.stat().st_mtime)
    doomed = found[: max(0, len(found) - keep)]
    for path in doomed:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    return doomed


def forgetting(store: Store, settings: Settings) -> Callable[[], Forgotten]:
    """All of it at once, when called. What it returns blocks, and raises: StoreError, OSError"""

    def run() -> Forgotten:
        keep = settings.retention.backups
        forget_copies(settings.state_dir / "backups", keep)
        forget_oldest(settings.state_dir / "backups", "before-restore-*.files", keep)
        forget_oldest(settings.state_dir / "support", "bayard-support-*.tar.gz", keep)
        return store.write_sync(lambda session: forget(session, settings.retention, utc_now()))

    return run
