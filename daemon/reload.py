"""Settings read again while the daemon runs: what can change at once does, the rest is named."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog

from daemon.settings_load import load_settings, setting_rows
from daemon.telemetry.logs import set_up_logging
from engine.errors import BayardError

if TYPE_CHECKING:
    from daemon.app import Appliance
    from daemon.settings import Settings

LIVE = frozenset({"log.level", "log.format", "limits.max_queue", "limits.max_body_bytes", "http.metrics_key"})
log = structlog.get_logger("bayard.settings")


@dataclass(frozen=True, slots=True)
class Reloaded:
    """Keys, sorted. certificate: whether a new one was loaded."""

    applied: tuple[str, ...]
    needs_restart: tuple[str, ...]
    certificate: bool


def reload_settings(app: Appliance) -> Reloaded:
    """Read file, environment and flags again. Nothing changes if one of them is wrong. Raises: ConfigError"""
    old = app.settings
    new = load_settings(old.file, flags=old.flags)
    changed = _differences(old, new)
    applied = sorted(key for key in changed if key in LIVE)
    app.settings = _merged(old, applied, changed)
    app.settings._sources.update({key: new.source_of(key) for key in applied})
    if any(key.startswith("log.") for key in applied):
        set_up_logging(app.settings.log)
    app.tenants.admission.max_queue = app.settings.limits.max_queue
    certificate = app.tls.look() if app.tls is not None else False
    done = Reloaded(tuple(applied), tuple(sorted(changed.keys() - LIVE)), certificate)
    log.info("settings_reloaded", applied=done.applied, needs_restart=done.needs_restart, certificate=certificate)
    return done


def reload_logged(app: Appliance) -> None:
    """For a signal, which nobody waits for."""
    try:
        reload_settings(app)
    except BayardError as error:
        log.error("settings_not_reloaded", error=str(error))


def _differences(old: Settings, new: Settings) -> dict[str, Any]:
    before = {row.key: row.value for row in setting_rows(old)}
    return {row.key: row.value for row in setting_rows(new) if row.value != before[row.key]}


def _merged(old: Settings, keys: list[str], values: dict[str, Any]) -> Settings:
    """The old settings with these values; sources and file stay."""
    sections: dict[str, dict[str, Any]] = {}
    for key in keys:
        section, _, name = key.partition(".")
        sections.setdefault(section, {})[name] = values[key]
    return old.model_copy(
        update={name: getattr(old, name).model_copy(update=inner) for name, inner in sections.items()}
    )


async def reload_in_thread(app: Appliance) -> Reloaded:
    """The files are read off the event loop; what they say is applied on it. Raises: ConfigError"""
    await asyncio.to_thread(load_settings, app.settings.file, flags=app.settings.flags)  # a broken file is told first
    return reload_settings(app)
