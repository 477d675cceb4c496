"""GET audit and audit/verify: who changed what, and whether the log is whole."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query

from daemon.api.admin.access import Admin, Services
from daemon.api.admin.answers import Answer, Item
from daemon.tenants import audit

router = APIRouter(prefix="/audit", tags=["audit"])


class AuditItem(Item):
    id: int
    at: datetime
    actor: str
    origin: str
    action: str
    subject: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    hash: str


class AuditAnswer(Answer):
    """Newest first; next is the `before` of the following page, None on the last."""

    items: list[AuditItem]
    next: int | None


class AuditVerifyAnswer(Answer):
    """broken_at: the first entry that does not fit; None: the chain is whole. head: hash of the last good entry.

    has_kept: whether the chain has the hash asked for; None: none was
    """

    entries: int
    whole: bool
    broken_at: int | None
    head: str
    has_kept: bool | None


@router.get("")
async def get_audit(
    services: Services,
    caller: Admin,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
    before: Annotated[int | None, Query(ge=1, le=2**63 - 1)] = None,
) -> AuditAnswer:
    records = await services.store.read(lambda session: audit.page(session, before_id=before, limit=limit))
    items = [
        AuditItem(
            id=record.id,
            at=record.at,
            actor=record.actor,
            origin=record.origin,
            action=record.action,
            subject=record.subject,
            before=record.before,
            after=record.after,
            hash=record.hash,
        )
        for record in records
    ]
    return AuditAnswer(items=items, next=items[-1].id if len(items) == limit else None)


@router.get("/verify")
async def get_audit_verify(
    services: Services, caller: Admin, contains: Annotated[str | None, Query(pattern="^[0-9a-f]{64}$")] = None
) -> AuditVerifyAnswer:
    check = await services.store.read(lambda session: audit.verify(session, contains))
    return AuditVerifyAnswer(
        entries=check.entries,
        whole=check.broken_at is None,
        broken_at=check.broken_at,
        head=check.head,
        has_kept=check.has_kept,
    )
