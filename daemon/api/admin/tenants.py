"""Tenants and their limits."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter
from pydantic import Field

from daemon.api.admin.access import Admin, Services, Viewer
from daemon.api.admin.answers import Answer, Body, Consequences, Item, Page
from daemon.tenants.directory import TenantRecord
from daemon.tenants.keys import KeyRecord
from daemon.tenants.limits import MOST_REQUESTS, MOST_TOKENS, TenantLimits
from daemon.tenants.quota import Period

router = APIRouter(tags=["tenants"])
Count = Annotated[int, Field(ge=1, le=MOST_REQUESTS)]
Tokens = Annotated[int, Field(ge=1, le=MOST_TOKENS)]


class LimitsBody(Body):
    """None is unlimited; models None allows every model; share None is 1, of the engines beside other tenants."""

    max_concurrency: Count | None = None
    max_queue: Annotated[int, Field(ge=0, le=MOST_REQUESTS)] | None = None
    requests_per_minute: Count | None = None
    request_burst: Count | None = None
    tokens_per_minute: Tokens | None = None
    token_burst: Tokens | None = None
    tokens_per_day: Tokens | None = None
    tokens_per_month: Tokens | None = None
    max_context_tokens: Tokens | None = None
    max_output_tokens: Tokens | None = None
    share: Annotated[float, Field(ge=0.01, le=100)] | None = None
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


class TenantChange(Body):
    """None leaves it as it is."""

    name: str | None = None
    priority: Annotated[int, Field(ge=-100, le=100)] | None = None


class QuotaItem(Item):
    """period: day or month, in UTC. reserved_tokens: set aside for requests that run now."""

    period: str
    limit: int | None
    used_tokens: int
    reserved_tokens: int
    resets_at: datetime


class TenantItem(Item):
    id: str
    name: str
    state: str
    priority: int
    created_at: datetime
    limits: LimitsBody
    running: int
    keys: int
    quotas: list[QuotaItem] | None


class TenantsAnswer(Answer):
    """next: the `after` of the following page; None on the last."""

    items: list[TenantItem]
    next: str | None


class TenantAnswer(Answer):
    item: TenantItem


class DeletedTenantAnswer(Answer):
    deleted: str


@router.get("/tenants")
async def get_tenants(services: Services, caller: Viewer, page: Page) -> TenantsAnswer:
    """By name, 500 at most at a time."""
    keys = await services.tenants.keys()
    part, following = page.of(await services.tenants.tenants(), lambda tenant: tenant.id)
    return TenantsAnswer(items=[_item(services, tenant, keys) for tenant in part], next=following)


@router.get("/tenants/{tenant}")
async def get_tenant(tenant: str, services: Services, caller: Viewer) -> TenantAnswer:
    found = await services.tenants.tenant(tenant)
    return TenantAnswer(item=_item(services, found, await services.tenants.keys()))


@router.post("/tenants", status_code=201)
async def post_tenant(body: TenantBody, services: Services, caller: Admin) -> TenantAnswer:
    tenant = await services.tenants.create_tenant(caller.actor, body.name, body.limits.limits(), body.priority)
    return TenantAnswer(item=_item(services, tenant, []))


@router.patch("/tenants/{tenant}")
async def patch_tenant(tenant: str, body: TenantChange, services: Services, caller: Admin) -> TenantAnswer:
    """Another name or priority; keys and usage stay with it."""
    changed = await services.tenants.change_tenant(caller.actor, tenant, name=body.name, priority=body.priority)
    return TenantAnswer(item=_item(services, changed, await services.tenants.keys()))


@router.delete("/tenants/{tenant}")
async def delete_tenant(
    tenant: str, services: Services, caller: Admin, dry_run: bool = False
) -> DeletedTenantAnswer | Consequences:
    """For good, with keys, stored answers, files and batches; refused while it is active. Usage and audit stay."""
    if dry_run:
        return await _consequences(services, tenant, "its keys, stored answers, files and batches are deleted")
    deleted = await services.tenants.delete_tenant(caller.actor, tenant)
    return DeletedTenantAnswer(deleted=deleted.name)


@router.put("/tenants/{tenant}/limits")
async def put_limits(
    tenant: str, body: TenantLimitsBody, services: Services, caller: Admin, dry_run: bool = False
) -> TenantAnswer | Consequences:
    """Replace the limits as a whole; running requests keep what they were admitted with."""
    if dry_run:
        return await _consequences(
            services, tenant, "its next requests meet the new limits", "running ones keep theirs"
        )
    changed = await services.tenants.set_limits(caller.actor, tenant, body.limits.limits(), body.priority)
    return TenantAnswer(item=_item(services, changed, await services.tenants.keys()))


@router.post("/tenants/{tenant}/suspend")
async def post_suspend(
    tenant: str, services: Services, caller: Admin, dry_run: bool = False
) -> TenantAnswer | Consequences:
    """Refuse its keys from now on; what runs is finished."""
    if dry_run:
        return await _consequences(services, tenant, "every key of it is refused", "running requests are finished")
    changed = await services.tenants.suspend(caller.actor, tenant)
    return TenantAnswer(item=_item(services, changed, await services.tenants.keys()))


@router.post("/tenants/{tenant}/resume")
async def post_resume(tenant: str, services: Services, caller: Admin) -> TenantAnswer:
    changed = await services.tenants.resume(caller.actor, tenant)
    return TenantAnswer(item=_item(services, changed, await services.tenants.keys()))


async def _consequences(services: Services, tenant: str, *told: str) -> Consequences:
    found = await services.tenants.tenant(tenant)
    keys = [key for key in await services.tenants.keys(found.id) if key.state_now == "active"]
    running = services.tenants.admission.running_of(found.id)
    return Consequences(consequences=[f"tenant {found.name} has {len(keys)} active keys", *told], in_flight=running)


def _item(services: Services, tenant: TenantRecord, keys: list[KeyRecord]) -> TenantItem:
    admission = services.tenants.admission
    now = admission.now()
    limits = {Period.DAY: tenant.limits.tokens_per_day, Period.MONTH: tenant.limits.tokens_per_month}
    quotas = []
    for quota in admission.quotas_of(tenant.id).both():
        window = quota.window(now)
        quotas.append(
            QuotaItem(
                period=quota.period.value,
                limit=limits[quota.period],
                used_tokens=window.used,
                reserved_tokens=window.reserved,
                resets_at=quota.period.end_of(now),
            )
        )
    return tenant_item(tenant, keys, admission.running_of(tenant.id), quotas)


def tenant_item(
    tenant: TenantRecord, keys: list[KeyRecord], running: int, quotas: list[QuotaItem] | None = None
) -> TenantItem:
    """quotas None: nobody keeps count, as no daemon runs."""
    return TenantItem(
        id=tenant.id,
        name=tenant.name,
        state=tenant.state,
        priority=tenant.priority,
        created_at=tenant.created_at,
        limits=limits_body(tenant.limits),
        running=running,
        quotas=quotas,
        keys=sum(key.tenant_id == tenant.id and key.revoked_at is None for key in keys),
    )


def limits_body(limits: TenantLimits) -> LimitsBody:
    return LimitsBody(**asdict(limits) | {"models": None if limits.models is None else sorted(limits.models)})
