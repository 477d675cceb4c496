"""Backups: what was saved, saving it now, and having the next start restore one."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from fastapi import APIRouter
from pydantic import SecretStr

from daemon.api.admin.access import Admin, Services, Viewer
from daemon.api.admin.answers import Answer, Body, Consequences, Item
from daemon.api.admin.operations import OperationAnswer, operation_item
from daemon.models.copying import Cancelled, Report
from daemon.store import backup, pending_restore
from engine.errors import InvalidParameter, NotFound

router = APIRouter(prefix="/backups", tags=["backups"])


class BackupItem(Item):
    """sealed: private keys are in it, encrypted. stored_files: of clients; None: they were left out."""

    id: str
    path: str
    size_bytes: int
    made_at: datetime
    version: str
    revision: str
    sealed: bool
    stored_files: int | None


class PendingItem(Item):
    """What the next start restores."""

    file: str
    asked_by: str
    asked_at: datetime


class BackupsAnswer(Answer):
    """Newest first."""

    items: list[BackupItem]
    pending_restore: PendingItem | None


class PendingAnswer(Answer):
    item: PendingItem


class WithdrawnAnswer(Answer):
    """withdrawn: the file that is no longer restored; None: none was to be."""

    withdrawn: str | None


class BackupBody(Body):
    """path: None chooses one in state_dir/backups. passphrase: for private keys, which are left out without one.

    stored_files: with what clients uploaded and batches wrote.
    """

    path: str | None = None
    passphrase: SecretStr | None = None
    stored_files: bool = True


@router.get("")
async def get_backups(services: Services, caller: Viewer) -> BackupsAnswer:
    found = await asyncio.to_thread(backup.listed, services.settings)
    asked = await asyncio.to_thread(pending_restore.pending, services.settings)
    waiting = None if asked is None else PendingItem.model_validate(asdict(asked))
    return BackupsAnswer(items=[backup_item(facts) for facts in found], pending_restore=waiting)


@router.post("/{backup_id}/restore", status_code=202)
async def post_restore(
    backup_id: str, services: Services, caller: Admin, dry_run: bool = False
) -> PendingAnswer | Consequences:
    """Check the back-up, and let the next start of the daemon restore it; what is here now is kept beside it."""
    found = await asyncio.to_thread(backup.listed, services.settings)
    facts = next((facts for facts in found if facts.path.name == backup_id), None)
    if facts is None:
        raise NotFound(f"there is no back-up {backup_id!r} in state_dir/backups.", "`bayard backup --list` names them.")
    if dry_run:
        told = [
            f"from the next start on the state is that of {facts.made_at:%Y-%m-%d %H:%M:%S} UTC",
            "tenants, keys, plans, usage and audit entries made since are no longer there; they are kept in backups",
            "private keys of TLS stay as they are; `bayard restore` with a passphrase opens those of a back-up",
        ]
        return Consequences(consequences=told, in_flight=len(services.serving.live))
    asked = await asyncio.to_thread(pending_restore.ask, services.settings, facts.path, caller.name)
    await services.tenants.record(caller.actor, "backup.restore-asked", f"backup:{backup_id}", asdict(asked))
    return PendingAnswer(item=PendingItem.model_validate(asdict(asked)))


@router.delete("/restore")
async def delete_restore(services: Services, caller: Admin) -> WithdrawnAnswer:
    """Let the next start restore nothing. Harmless when repeated."""
    asked = await asyncio.to_thread(pending_restore.pending, services.settings)
    await asyncio.to_thread(pending_restore.withdraw, services.settings)
    if asked is not None:
        await services.tenants.record(caller.actor, "backup.restore-withdrawn", f"file:{asked.file}")
    return WithdrawnAnswer(withdrawn=asked.file if asked else None)


@router.post("", status_code=202)
async def post_backup(services: Services, caller: Admin, body: BackupBody | None = None) -> OperationAnswer:
    """Begin; look at operations/{id} for its end."""
    asked = body or BackupBody()
    path = Path(asked.path) if asked.path is not None else None
    if path is not None and not path.is_absolute():
        raise InvalidParameter(
            f"The path {asked.path!r} is not absolute.", "Send it as the daemon sees it.", param="path"
        )
    secret = asked.passphrase.get_secret_value() if asked.passphrase is not None else None

    def work(report: Report, cancelled: Cancelled) -> dict[str, Any]:
        return backup_item(backup.create(services.settings, path, secret, with_files=asked.stored_files)).model_dump(
            mode="json"
        )

    operation = services.operations.start("backup", path.name if path else "backups", work)
    after = {"path": asked.path, "sealed": secret is not None}
    await services.tenants.record(caller.actor, "backup.create", "backups", after)
    return OperationAnswer(item=operation_item(operation))


def backup_item(facts: backup.BackupFacts) -> BackupItem:
    return BackupItem(
        id=facts.path.name,
        path=str(facts.path),
        size_bytes=facts.size_bytes,
        made_at=facts.made_at,
        version=facts.version,
        revision=facts.revision,
        sealed=facts.sealed,
        stored_files=facts.stored_files,
    )
