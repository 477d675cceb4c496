"""GET attention and POST attention/{id}/ack: what needs a person, and that one has seen it."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Annotated, cast

from fastapi import APIRouter, Depends, Request

from daemon.api.admin.access import Operator, Services, Viewer
from daemon.api.admin.answers import Answer, Item
from daemon.api.admin.faults import Attention, Fault, faults_of
from engine.errors import NotFound

router = APIRouter(prefix="/attention", tags=["attention"])


class AttentionItem(Item):
    """severity: fail, warn. since: when it was first seen. acknowledged_by: who has seen it, until it is gone."""

    id: str
    kind: str
    subject: str
    severity: str
    text: str
    fix: str
    since: datetime
    acknowledged_by: str | None
    acknowledged_at: datetime | None


class AttentionAnswer(Answer):
    """Failures first."""

    items: list[AttentionItem]


class AttentionItemAnswer(Answer):
    item: AttentionItem


def _attention(request: Request) -> Attention:
    return cast(Attention, request.app.state.attention)


Noted = Annotated[Attention, Depends(_attention)]


@router.get("")
async def get_attention(services: Services, noted: Noted, caller: Viewer) -> AttentionAnswer:
    faults = await faults_of(services)
    await asyncio.to_thread(noted.note, faults)
    return AttentionAnswer(items=[_item(fault, noted) for fault in faults])


@router.post("/{fault_id}/ack")
async def post_ack(fault_id: str, services: Services, noted: Noted, caller: Operator) -> AttentionItemAnswer:
    """Say that it was seen; it stays in the list until it is mended. Harmless when repeated."""
    faults = await faults_of(services)
    await asyncio.to_thread(noted.note, faults)
    for fault in faults:
        if fault.id == fault_id:
            await asyncio.to_thread(noted.acknowledge, fault, caller.name)
            await services.tenants.record(caller.actor, "attention.ack", f"attention:{fault_id}", {"text": fault.text})
            return AttentionItemAnswer(item=_item(fault, noted))
    raise NotFound(f"nothing called {fault_id!r} needs attention now.", "`bayard attention` lists what does.")


def _item(fault: Fault, noted: Attention) -> AttentionItem:
    ack = noted.acknowledged.get(fault.id)
    return AttentionItem(
        id=fault.id,
        kind=fault.kind,
        subject=fault.subject,
        severity=fault.severity.value,
        text=fault.text,
        fix=fault.fix,
        since=noted.since[fault.id],
        acknowledged_by=ack.by if ack else None,
        acknowledged_at=ack.at if ack else None,
    )
