"""Tenants, their limits and their keys. A key's secret is in exactly one answer: that of its creation."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter
from pydantic import AwareDatetime, Field

from daemon.api.admin.access import Admin, Services, Viewer
from daemon.api.admin.answers import Answer, Body, Item
from daemon.tenants.directory import TenantRecord
from daemon.tenants.keys import KeyRecord
from daemon.tenants.limits import TenantLimits
from daemon.tenants.principal import Role

router = APIRouter(tags=["tenants"])
Count = Annotated[int, Field(ge=1)]


class LimitsBody(Body):
    """None is unlimited; models None allows every model."""

    max_concurrency: Count | None = None
    max_queue: Annotated[int, Field(ge=0)] | None = None
    requests_per_minute: Count | None = None
    tokens_per_minute: Count | None = None
    max_context_tokens: Count | None = None
    max_output_tokens: Count | None = None
    models: list[str] | None = None

    def limits(self) -> TenantLimits:
        values = self.model_dump()
        values["models"] = None if self.models is None else frozenset(self.models)
        return TenantLimits(**values)


class TenantBody(Body):
    """priority: lower runs first."""

    name: str
    priority: Annotated[int, Field(ge=-100, le=100)] = 0
    limits: LimitsBody = LimitsBody()


class TenantLimitsBody(Body):
    priority: Annotated[int, Field(ge=-100, le=100)] = 0
    limits: LimitsBody


class TenantItem(Item):
    id: str
    name: str
    state: str
    priority: int
    created_at: datetime
    limits: LimitsBody
    running: int
    keys: int


class TenantsAnswer(Answer):
    items: list[TenantItem]


class TenantAnswer(Answer):
    item: TenantItem


class KeyBody(Body):
    name: str = ""
    role: Role = Role.INFERENCE
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


class KeysAnswer(Answer):
    items: list[KeyItem]


class KeyAnswer(Answer):
    item: KeyItem


class IssuedKeyAnswer(Answer):
    """secret is shown here and never again."""

    item: KeyItem
    secret: str


@router.get("/tenants")
async def get_tenants(services: Services, caller: Viewer) -> TenantsAnswer:
    keys = await services.tenants.keys()
    return TenantsAnswer(items=[_item(services, tenant, keys) for tenant in await services.tenants.tenants()])


@router.post("/tenants", status_code=201)
async def post_tenant(body: TenantBody, services: Services, caller: Admin) -> TenantAnswer:
    tenant = await services.tenants.create_tenant(caller.actor, body.name, body.limits.limits(), body.priority)
    return TenantAnswer(item=_item(services, tenant, []))


@router.put("/tenants/{tenant}/limits")
async def put_limits(tenant: str, body: TenantLimitsBody, services: Services, caller: Admin) -> TenantAnswer:
    """Replace the limits as a whole; running requests keep what they were admitted with."""
    changed = await services.tenants.set_limits(caller.actor, tenant, body.limits.limits(), body.priority)
    return TenantAnswer(item=_item(services, changed, await services.tenants.keys()))


@router.post("/tenants/{tenant}/suspend")
async def post_suspend(tenant: str, services: Services, caller: Admin) -> TenantAnswer:
    changed = await services.tenants.suspend(caller.actor, tenant)
    return TenantAnswer(item=_item(services, changed, await services.tenants.keys()))


@router.post("/tenants/{tenant}/resume")
async def post_resume(tenant: str, services: Services, caller: Admin) -> TenantAnswer:
    changed = await services.tenants.resume(caller.actor, tenant)
    return TenantAnswer(item=_item(services, changed, await services.tenants.keys()))


@router.get("/tenants/{tenant}/keys")
async def get_tenant_keys(tenant: str, services: Services, caller: Viewer) -> KeysAnswer:
    found = await services.tenants.tenant(tenant)
    return KeysAnswer(items=[key_item(key) for key in await services.tenants.keys(found.id)])


@router.get("/keys")
async def get_keys(services: Services, caller: Viewer) -> KeysAnswer:
    return KeysAnswer(items=[key_item(key) for key in await services.tenants.keys()])


@router.post("/tenants/{tenant}/keys", status_code=201)
async def post_key(tenant: str, body: KeyBody, services: Services, caller: Admin) -> IssuedKeyAnswer:
    issued = await services.tenants.issue_key(
        caller.actor, tenant, name=body.name, role=body.role, expires_at=body.expires_at
    )
    return IssuedKeyAnswer(item=key_item(issued.record), secret=issued.secret)


@router.post("/keys/{key_id}/revoke")
async def post_revoke(key_id: str, services: Services, caller: Admin) -> KeyAnswer:
    """The key, named by its id or its prefix, is refused from the moment this answers."""
    return KeyAnswer(item=key_item(await services.tenants.revoke_key(caller.actor, key_id)))


def _item(services: Services, tenant: TenantRecord, keys: list[KeyRecord]) -> TenantItem:
    return tenant_item(tenant, keys, services.tenants.admission.running_of(tenant.id))


def tenant_item(tenant: TenantRecord, keys: list[KeyRecord], running: int) -> TenantItem:
    limits = tenant.limits
    return TenantItem(
        id=tenant.id,
        name=tenant.name,
        state=tenant.state,
        priority=tenant.priority,
        created_at=tenant.created_at,
        limits=LimitsBody(
            max_concurrency=limits.max_concurrency,
            max_queue=limits.max_queue,
            requests_per_minute=limits.requests_per_minute,
            tokens_per_minute=limits.tokens_per_minute,
            max_context_tokens=limits.max_context_tokens,
            max_output_tokens=limits.max_output_tokens,
            models=None if limits.models is None else sorted(limits.models),
        ),
        running=running,
        keys=sum(key.tenant_id == tenant.id and key.revoked_at is None for key in keys),
    )


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
    )
