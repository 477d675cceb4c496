"""GET aliases, PUT and DELETE aliases/{alias}: other names that models answer to."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter

from daemon.api.admin.access import Operator, Services, Viewer
from daemon.api.admin.answers import Answer, Body, Item

router = APIRouter(prefix="/aliases", tags=["models"])


class AliasItem(Item):
    alias: str
    model: str


class AliasesAnswer(Answer):
    items: list[AliasItem]


class AliasAnswer(Answer):
    """before: what it meant until now; None: nothing."""

    item: AliasItem
    before: str | None


class AliasBody(Body):
    model: str


@router.get("")
async def get_aliases(services: Services, caller: Viewer) -> AliasesAnswer:
    found = await asyncio.to_thread(services.aliases.all)
    return AliasesAnswer(items=[AliasItem(alias=alias, model=model) for alias, model in sorted(found.items())])


@router.put("/{alias:path}")
async def put_alias(alias: str, body: AliasBody, services: Services, caller: Operator) -> AliasAnswer:
    """Requests for the alias go to this model from now on; those that run go on where they are."""
    before = await asyncio.to_thread(services.aliases.set, alias, body.model)
    if before != body.model:
        after, earlier = {"model": body.model}, {"model": before}
        await services.tenants.record(caller.actor, "alias.set", f"alias:{alias}", after, earlier)
    return AliasAnswer(item=AliasItem(alias=alias, model=body.model), before=before)


@router.delete("/{alias:path}")
async def delete_alias(alias: str, services: Services, caller: Operator) -> AliasAnswer:
    before = await asyncio.to_thread(services.aliases.remove, alias)
    await services.tenants.record(caller.actor, "alias.remove", f"alias:{alias}", before={"model": before})
    return AliasAnswer(item=AliasItem(alias=alias, model=before), before=before)
