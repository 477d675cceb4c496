"""GET settings: the values in force and where each comes from; secrets are not shown."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from daemon.api.admin.access import Services, Viewer
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
