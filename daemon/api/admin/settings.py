"""GET settings: the values in force and where each comes from; secrets are not shown."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, SecretStr

from daemon.api.admin.access import Services, Viewer
from daemon.api.admin.answers import Answer, Item
from daemon.settings import Settings

router = APIRouter(tags=["settings"])
REDACTED = "(set)"


class SettingItem(Item):
    """source: default, file, env, flag."""

    key: str
    value: Any
    source: str
    description: str


class SettingsAnswer(Answer):
    file: str | None
    items: list[SettingItem]


@router.get("/settings")
async def get_settings(services: Services, caller: Viewer) -> SettingsAnswer:
    settings = services.settings
    return SettingsAnswer(file=str(settings.file) if settings.file else None, items=_items(settings, settings, ""))


def _items(settings: Settings, section: BaseModel, prefix: str) -> list[SettingItem]:
    items: list[SettingItem] = []
    for name, field in type(section).model_fields.items():
        key, value = f"{prefix}{name}", getattr(section, name)
        if isinstance(value, BaseModel):
            items.extend(_items(settings, value, f"{key}."))
            continue
        source = settings.source_of(key).value
        items.append(SettingItem(key=key, value=_plain(value), source=source, description=field.description or ""))
    return items


def _plain(value: Any) -> Any:
    if isinstance(value, SecretStr):
        return REDACTED if value.get_secret_value() else ""
    return value if isinstance(value, (bool, int, float, str)) or value is None else str(value)
