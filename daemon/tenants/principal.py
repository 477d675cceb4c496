"""Who a request comes from, once its key is known; and who changes things, for the audit."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from daemon.tenants.limits import TenantLimits


class Role(StrEnum):
    INFERENCE = "inference"  # may generate
    ADMIN = "admin"  # may generate; administering goes by the admin socket, which asks for no key


@dataclass(frozen=True, slots=True)
class Principal:
    """One key of one tenant, as it was when the request came. priority: lower runs first."""

    tenant_id: str
    tenant_name: str
    key_id: str
    key_prefix: str
    role: Role
    limits: TenantLimits
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Actor:
    """Who makes a change. origin: "socket", "command"."""

    name: str
    origin: str
