"""Changing settings while the daemon runs: what may change, what it would become, and where that is kept."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from daemon.reload import LIVE
from daemon.settings import Settings, Source
from daemon.settings_load import load_settings, setting_fields, setting_rows, variable_of
from daemon.settings_stored import NEVER, read_stored, write_stored
from engine.errors import ConfigError, Conflict, InvalidParameter


@dataclass(frozen=True, slots=True)
class Change:
    """One key's effective value before and after. live: it holds at once, not from the next start on."""

    key: str
    before: Any
    after: Any
    live: bool

    def __str__(self) -> str:
        return f"{self.key}: {self.before!r} -> {self.after!r}, {'at once' if self.live else 'after a restart'}"


def locked(settings: Settings, key: str) -> bool:
    """Whether the API cannot change it: it says where things are, or a stronger source has set it."""
    return key in NEVER or settings.source_of(key) in (Source.ENV, Source.FLAG)


def pending(settings: Settings) -> dict[str, Any]:
    """What the next start would find other than it is now; empty where the files are broken. Blocks: for them"""
    try:
        coming = load_settings(settings.file, flags=settings.flags)
    except ConfigError:  # the start itself will say what is wrong
        return {}
    now = {row.key: row.value for row in setting_rows(settings)}
    return {row.key: row.value for row in setting_rows(coming) if row.value != now[row.key]}


def _locked(settings: Settings, key: str) -> Conflict:
    if key in NEVER:
        return Conflict(f"{key} is for who runs the service alone.", f"Set it in the file, or as {variable_of(key)}.")
    where = variable_of(key) if settings.source_of(key) is Source.ENV else "the command line or the unit"
    return Conflict(f"{key} is set by {where}, which is above the admin API.", "Change it there.")


def plan_changes(settings: Settings, values: Mapping[str, Any]) -> tuple[list[Change], dict[str, Any]]:
    """What these values, None for taking an earlier change back, would change; and all that is then to be stored.

    Blocks: for files. Raises: InvalidParameter for an unknown key; or a value that cannot be; Conflict for a locked one
    """
    known = setting_fields()
    stored = read_stored(settings.state_dir)
    for key, value in values.items():
        if key not in known:
            raise InvalidParameter(f"{key} is no setting.", "`bayard config show` lists the settings.", param=key)
        if key in NEVER:
            raise Conflict(
                f"{key} says where things are, or who may come in; the admin API never sets it.",
                "Set it in the settings file, the environment or the unit, and restart.",
            )
        if locked(settings, key):
            raise _locked(settings, key)
        if value is None:
            stored.pop(key, None)
        else:
            stored[key] = value
    before = {row.key: row.value for row in setting_rows(load_settings(settings.file, flags=settings.flags))}
    try:
        after = load_settings(settings.file, os.environ, settings.flags, stored)
    except ConfigError as error:
        raise InvalidParameter(error.message, error.hint, param="values") from error
    changes = [
        Change(row.key, before[row.key], row.value, row.key in LIVE)
        for row in setting_rows(after)
        if row.value != before[row.key]
    ]
    return changes, stored


def keep(settings: Settings, stored: Mapping[str, Any]) -> None:
    """Write what plan_changes said; `reload` then applies what can change at once. Raises: ConfigError"""
    write_stored(settings.state_dir, stored)
