"""Where files live when nobody says so. Imports only the standard library."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from pathlib import Path

SERVICE_USER = "bayard"


def is_service(env: Mapping[str, str]) -> bool:
    """True for systemd's service, for the service user, and for root, who administers it."""
    if env.get("STATE_DIRECTORY"):
        return True
    uid = os.geteuid()
    if uid == 0:
        return True
    try:
        return pwd.getpwuid(uid).pw_name == SERVICE_USER
    except KeyError:  # a uid without a passwd entry, as in some containers
        return False


def default_state_dir(env: Mapping[str, str]) -> Path:
    if env.get("STATE_DIRECTORY"):
        return Path(env["STATE_DIRECTORY"].split(":")[0])
    if is_service(env):
        return Path("/var/lib/bayard")
    base = env.get("XDG_STATE_HOME") or os.path.join(env.get("HOME") or os.path.expanduser("~"), ".local", "state")
    return Path(base) / "bayard"


def default_run_dir(env: Mapping[str, str], state_dir: Path) -> Path:
    """Sockets live beside a state folder that somebody chose, else where the system keeps such files."""
    if state_dir != default_state_dir(env):
        return state_dir / "run"
    if env.get("RUNTIME_DIRECTORY"):
        return Path(env["RUNTIME_DIRECTORY"].split(":")[0])
    if is_service(env):
        return Path("/run/bayard")
    runtime = env.get("XDG_RUNTIME_DIR")
    return Path(runtime) / "bayard" if runtime else state_dir / "run"


def default_config_file(env: Mapping[str, str]) -> Path:
    if env.get("CONFIGURATION_DIRECTORY"):
        return Path(env["CONFIGURATION_DIRECTORY"].split(":")[0]) / "bayard.toml"
    if is_service(env):
        return Path("/etc/bayard/bayard.toml")
    base = env.get("XDG_CONFIG_HOME") or os.path.join(env.get("HOME") or os.path.expanduser("~"), ".config")
    return Path(base) / "bayard" / "bayard.toml"
