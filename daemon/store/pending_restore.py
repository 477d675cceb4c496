"""A restore that was asked for while the daemon ran: noted in the state folder, done by the next start."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from daemon.settings import Settings
from daemon.store import backup
from daemon.store.base import utc_now
from engine.errors import BayardError

if TYPE_CHECKING:
    from daemon.events import EventLog
    from daemon.store.session import Store

NAME = "restore-pending.json"
FAILED = "restore-failed.json"
log = structlog.get_logger("bayard.store")


@dataclass(frozen=True, slots=True)
class PendingRestore:
    file: str
    asked_by: str
    asked_at: str  # UTC, ISO


@dataclass(frozen=True, slots=True)
class DoneRestore:
    """problem: why it was not done, and the state is what it was; empty: it was."""

    asked: PendingRestore
    made_at: str
    kept_as: str | None
    problem: str = ""


def ask(settings: Settings, path: Path, by: str) -> PendingRestore:
    """Check the back-up, and note that the next start restores it. Blocks. Raises: StoreError"""
    backup.check(path)
    asked = PendingRestore(str(path), by, utc_now().isoformat())
    place = settings.state_dir / NAME
    draft = place.with_name(f".{NAME}.draft")
    with open(draft, "w", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        json.dump(asdict(asked), file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(place)
    return asked


def pending(settings: Settings) -> PendingRestore | None:
    """None too where the note cannot be read: the next start says so."""
    try:
        return PendingRestore(**json.loads((settings.state_dir / NAME).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def withdraw(settings: Settings) -> None:
    (settings.state_dir / NAME).unlink(missing_ok=True)


def do_pending(settings: Settings) -> DoneRestore | None:
    """Restore what was asked for; None where nothing was. The caller holds the state lock, and opens the store after.

    A start that is killed meanwhile is followed by one that does it again. One that cannot be done leaves the state as
    it was, and is not tried again.
    Blocks.
    """
    note = settings.state_dir / NAME
    asked = pending(settings)
    if asked is None:
        if not note.exists():
            return None
        log.error("restore_failed", file=str(note), error="the note of what to restore cannot be read")
        note.replace(settings.state_dir / FAILED)
        return DoneRestore(PendingRestore("", "unknown", ""), "", None, f"{note} cannot be read.")
    try:
        facts, kept = backup.restore(settings, Path(asked.file))
    except BayardError as error:
        log.error("restore_failed", file=asked.file, error=str(error))
        note.replace(settings.state_dir / FAILED)
        return DoneRestore(asked, "", None, str(error))
    log.warning("restored", file=asked.file, made_at=facts.made_at.isoformat(), before_kept_as=kept and str(kept))
    withdraw(settings)
    return DoneRestore(asked, facts.made_at.isoformat(), str(kept) if kept else None)


def tell_restored(store: Store, events: EventLog, done: DoneRestore) -> None:
    """Into the audit and the events of the state that there is now. Blocks."""
    from daemon.tenants import audit
    from daemon.tenants.principal import Actor

    what = "restore-failed" if done.problem else "restore"
    after = asdict(done.asked) | {"made_at": done.made_at, "before_kept_as": done.kept_as, "problem": done.problem}
    actor = Actor(done.asked.asked_by, "start")
    store.write_sync(lambda session: audit.append(session, actor, f"backup.{what}", "database", after=after))
    told = done.problem or f"the state of {done.made_at}; the database from before is {done.kept_as}"
    events.publish("appliance", "bayard", None, what, told)
