"""GET settings: the values in force and where each comes from; secrets are not shown."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from daemon.api.admin.access import Admin, Services, Viewer
from daemon.api.admin.answers import Answer, Item
from daemon.settings_load import setting_fields, setting_rows

router = APIRouter(tags=["settings"])


class SettingItem(Item):
    """source: default, file, env, flag."""

    key: str
    value: Any
    default: Any
    source: str
    description: str


class SettingsAnswer(Answer):
    file: str | None
    items: list[SettingItem]


class ReloadedAnswer(Answer):
    """applied: keys that hold from now on. needs_restart: keys that changed and hold from the next start on."""

    applied: list[str]
    needs_restart: list[str]
    certificate: bool


@router.post("/settings/reload")
async def post_reload(services: Services, caller: Admin) -> ReloadedAnswer:
    """Read file, environment and flags again; nothing changes if one of them is wrong."""
    done = await services.reload()
    after = {"applied": list(done.applied), "needs_restart": list(done.needs_restart)}
    await services.tenants.record(caller.actor, "settings.reload", "settings", after)
    return ReloadedAnswer(
        applied=list(done.applied), needs_restart=list(done.needs_restart), certificate=done.certificate
    )


@router.get("/settings")
async def get_settings(services: Services, caller: Viewer) -> SettingsAnswer:
    settings, fields = services.settings, setting_fields()
    items = [
        SettingItem(
            key=row.key,
            value=row.value,
            default=row.default,
            source=row.source,
            description=fields[row.key].description or "",
        )
        for row in setting_rows(settings)
    ]
    return SettingsAnswer(file=str(settings.file) if settings.file else None, items=items)
