"""GET and PATCH settings: the values in force and where each comes from, and changing them; secrets are not shown."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter

from daemon.api.admin.access import Admin, Services, Viewer
from daemon.api.admin.answers import Answer, Body, Consequences, Item
from daemon.reload import LIVE, Reloaded
from daemon.settings_change import keep, locked, pending, plan_changes
from daemon.settings_load import setting_fields, setting_rows

router = APIRouter(tags=["settings"])


class SettingItem(Item):
    """source: default, file, admin, env, flag. locked: a stronger source holds it. live: a change holds at once.

    pending: what it will be from the next start on, where that differs; else null.
    """

    key: str
    value: Any
    default: Any
    source: str
    locked: bool
    live: bool
    pending: Any
    description: str


class SettingsAnswer(Answer):
    file: str | None
    items: list[SettingItem]


class ReloadedAnswer(Answer):
    """applied: keys that hold from now on. needs_restart: keys that changed and hold from the next start on."""

    applied: list[str]
    needs_restart: list[str]
    certificate: bool


class SettingsBody(Body):
    """values: dotted keys; null takes an earlier change through this API back."""

    values: dict[str, Any]


@router.patch("/settings")
async def patch_settings(
    body: SettingsBody, services: Services, caller: Admin, dry_run: bool = False
) -> ReloadedAnswer | Consequences:
    """Change settings for good: above the settings file, below the environment and the command line."""
    changes, stored = await asyncio.to_thread(plan_changes, services.settings, body.values)
    if dry_run:
        return Consequences(consequences=[str(change) for change in changes] or ["nothing changes"])
    await asyncio.to_thread(keep, services.settings, stored)
    done = await services.reload()
    before, after = ({change.key: getattr(change, side) for change in changes} for side in ("before", "after"))
    await services.tenants.record(caller.actor, "settings.change", "settings", after, before)
    return _reloaded(done)


@router.post("/settings/reload")
async def post_reload(services: Services, caller: Admin) -> ReloadedAnswer:
    """Read file, environment and flags again; nothing changes if one of them is wrong."""
    done = await services.reload()
    after = {"applied": list(done.applied), "needs_restart": list(done.needs_restart)}
    await services.tenants.record(caller.actor, "settings.reload", "settings", after)
    return _reloaded(done)


def _reloaded(done: Reloaded) -> ReloadedAnswer:
    return ReloadedAnswer(
        applied=list(done.applied), needs_restart=list(done.needs_restart), certificate=done.certificate
    )


@router.get("/settings")
async def get_settings(services: Services, caller: Viewer) -> SettingsAnswer:
    settings, fields = services.settings, setting_fields()
    later = await asyncio.to_thread(pending, settings)
    items = [
        SettingItem(
            key=row.key,
            value=row.value,
            default=row.default,
            source=row.source,
            locked=locked(settings, row.key),
            live=row.key in LIVE,
            pending=later.get(row.key),
            description=fields[row.key].description or "",
        )
        for row in setting_rows(settings)
    ]
    return SettingsAnswer(file=str(settings.file) if settings.file else None, items=items)
