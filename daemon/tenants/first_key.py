"""The first key: made when there is no tenant at all, in a file that only root and the daemon's user can read."""

from __future__ import annotations

import os
from pathlib import Path

import structlog

from daemon.tenants.principal import Actor, Role
from daemon.tenants.service import TenantService
from engine.errors import ConfigError

TENANT = "administration"
FILE = "first-admin-key"
log = structlog.get_logger(__name__)


async def make_first_key(tenants: TenantService, state_dir: Path) -> Path | None:
    """The file, or None where tenants exist already. Raises: ConfigError if it cannot be written"""
    if await tenants.tenants():
        return None
    path = state_dir / FILE
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}.", "Check state_dir.") from error
    actor = Actor("bayard", "first start")
    with os.fdopen(fd, "w") as file:
        os.fchmod(fd, 0o600)
        await tenants.create_tenant(actor, TENANT)
        issued = await tenants.issue_key(actor, TENANT, name="first", role=Role.ADMIN)
        file.write(issued.secret + "\n")
    log.warning("first_admin_key_made", path=str(path), key=issued.record.prefix)
    return path
