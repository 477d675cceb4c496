"""Settings that were changed through the admin API: one file in the state folder, above the settings file, below the
environment and the command line."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.errors import ConfigError

NAME = "settings.json"
# What says where the state is, or opens it, cannot lie in it; and a key of the admin API is no right to run programs.
NEVER = frozenset({"state_dir", "run_dir", "admin_socket", "database_url", "workers.command"})


def read_stored(state_dir: Path) -> dict[str, Any]:
    """Dotted keys; empty where nothing was changed, or this user may not see it. Raises: ConfigError"""
    path = state_dir / NAME
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, PermissionError, NotADirectoryError):
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path} cannot be read: {error}.", "Move it away: it holds settings changed while running."
        ) from error
    if not isinstance(found, dict):
        raise ConfigError(
            f"{path} holds no object.", "Move it away: it holds settings that were changed while running."
        )
    return found


def write_stored(state_dir: Path, values: Mapping[str, Any]) -> None:
    """All of them, or nothing. Raises: ConfigError"""
    path = state_dir / NAME
    draft = path.with_name(f".{NAME}.draft")
    try:
        with open(draft, "w", encoding="utf-8", opener=_private) as file:
            json.dump(dict(sorted(values.items())), file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}.", "Check the disk.") from error


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
