"""GET and POST backups: what was saved, and saving it now. Restoring is a command: the daemon has to be stopped."""

from __future__ import annotations

import asyncio
from datetime import datetime
from pathlib import Path
from typing import Any

from fastapi import APIRouter
from pydantic import SecretStr

from daemon.api.admin.access import Admin, Services, Viewer
from daemon.api.admin.answers import Answer, Body, Item
from daemon.api.admin.operations import OperationAnswer, operation_item
from daemon.models.copying import Cancelled, Report
from daemon.store import backup
from engine.errors import InvalidParameter

router = APIRouter(prefix="/backups", tags=["backups"])


class BackupItem(Item):
    """sealed: private keys are in it, encrypted."""

    path: str
    size_bytes: int
    made_at: datetime
    version: str
    revision: str
    sealed: bool


class BackupsAnswer(Answer):
    """Newest first."""

    items: list[BackupItem]


class BackupBody(Body):
    """path: None chooses one in state_dir/backups. passphrase: for private keys, which are left out without one."""

    path: str | None = None
    passphrase: SecretStr | None = None


@router.get("")
async def get_backups(services: Services, caller: Viewer) -> BackupsAnswer:
    found = await asyncio.to_thread(backup.listed, services.settings)
    return BackupsAnswer(items=[backup_item(facts) for facts in found])


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
        return backup_item(backup.create(services.settings, path, secret)).model_dump(mode="json")

    operation = services.operations.start("backup", path.name if path else "backups", work)
    after = {"path": asked.path, "sealed": secret is not None}
    await services.tenants.record(caller.actor, "backup.create", "backups", after)
    return OperationAnswer(item=operation_item(operation))


def backup_item(facts: backup.BackupFacts) -> BackupItem:
    return BackupItem(
        path=str(facts.path),
        size_bytes=facts.size_bytes,
        made_at=facts.made_at,
        version=facts.version,
        revision=facts.revision,
        sealed=facts.sealed,
    )
