"""API keys. A key's secret is in exactly one answer: that of its creation or rotation."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated

from fastapi import APIRouter
from pydantic import AwareDatetime, Field

from daemon.api.admin.access import Admin, Services, Viewer
from daemon.api.admin.answers import Answer, Body, Consequences, Item, Page, Paging
from daemon.tenants.keys import KeyRecord
from daemon.tenants.principal import Role
from daemon.tenants.service import LONGEST_OVERLAP

router = APIRouter(tags=["keys"])
DAY_S = 86_400.0


class KeyBody(Body):
    name: str = ""
    role: Role = Role.INFERENCE
    expires_at: AwareDatetime | None = None


class RotateBody(Body):
    """overlap_s: how long the old key goes on working beside the new one."""

    overlap_s: Annotated[float, Field(ge=0, le=LONGEST_OVERLAP.total_seconds())] = DAY_S
    expires_at: AwareDatetime | None = None


class KeyItem(Item):
    """state: active, expired, revoked."""

    id: str
    tenant_id: str
    name: str
    prefix: str
    role: str
    state: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    replaced_by: str | None


class KeysAnswer(Answer):
    """next: the `after` of the following page; None on the last."""

    items: list[KeyItem]
    next: str | None


class KeyAnswer(Answer):
    item: KeyItem


class IssuedKeyAnswer(Answer):
    """secret is shown here and never again."""

    item: KeyItem
    secret: str


@router.get("/tenants/{tenant}/keys")
async def get_tenant_keys(tenant: str, services: Services, caller: Viewer, page: Page) -> KeysAnswer:
    """Oldest first, 500 at most at a time."""
    found = await services.tenants.tenant(tenant)
    return _page(await services.tenants.keys(found.id), page)


@router.get("/keys")
async def get_keys(services: Services, caller: Viewer, page: Page) -> KeysAnswer:
    """Oldest first, 500 at most at a time."""
    return _page(await services.tenants.keys(), page)


@router.get("/keys/{key_id}")
async def get_key(key_id: str, services: Services, caller: Viewer) -> KeyAnswer:
    return KeyAnswer(item=key_item(await services.tenants.key(key_id)))


@router.post("/tenants/{tenant}/keys", status_code=201)
async def post_key(tenant: str, body: KeyBody, services: Services, caller: Admin) -> IssuedKeyAnswer:
    issued = await services.tenants.issue_key(
        caller.actor, tenant, name=body.name, role=body.role, expires_at=body.expires_at
    )
    return IssuedKeyAnswer(item=key_item(issued.record), secret=issued.secret)


@router.post("/keys/{key_id}/revoke")
async def post_revoke(
    key_id: str, services: Services, caller: Admin, dry_run: bool = False
) -> KeyAnswer | Consequences:
    """The key, named by its id or its prefix, is refused from the moment this answers."""
    if dry_run:
        return await _consequences(services, key_id, "it is refused at once; streams that it began are finished")
    return KeyAnswer(item=key_item(await services.tenants.revoke_key(caller.actor, key_id)))


@router.post("/keys/{key_id}/rotate", status_code=201)
async def post_rotate(
    key_id: str, body: RotateBody, services: Services, caller: Admin, dry_run: bool = False
) -> IssuedKeyAnswer | Consequences:
    """A new key in its place; the old one works until the overlap is over."""
    if dry_run:
        return await _consequences(services, key_id, f"it works for {body.overlap_s:g} s more, beside a new one")
    issued = await services.tenants.rotate_key(
        caller.actor, key_id, overlap=timedelta(seconds=body.overlap_s), expires_at=body.expires_at
    )
    return IssuedKeyAnswer(item=key_item(issued.record), secret=issued.secret)


async def _consequences(services: Services, key_id: str, told: str) -> Consequences:
    key = await services.tenants.key(key_id)
    tenant = await services.tenants.tenant(key.tenant_id)
    used = f"last used at {key.last_used_at.isoformat()}" if key.last_used_at else "never used"
    live = sum(request.key_prefix == key.prefix for request in services.serving.live.all())
    return Consequences(consequences=[f"key {key.prefix}.. of tenant {tenant.name} was {used}", told], in_flight=live)


def _page(keys: list[KeyRecord], page: Paging) -> KeysAnswer:
    part, following = page.of(keys, lambda key: key.id)
    return KeysAnswer(items=[key_item(key) for key in part], next=following)


def key_item(key: KeyRecord) -> KeyItem:
    return KeyItem(
        id=key.id,
        tenant_id=key.tenant_id,
        name=key.name,
        prefix=key.prefix,
        role=key.role.value,
        state=key.state_now,
        created_at=key.created_at,
        expires_at=key.expires_at,
        revoked_at=key.revoked_at,
        last_used_at=key.last_used_at,
        replaced_by=key.replaced_by,
    )
