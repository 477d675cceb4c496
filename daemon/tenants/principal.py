"""Who a request comes from, once its key is known; and who changes things, for the audit."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from daemon.tenants.limits import TenantLimits


class Role(StrEnum):
    """What a key is for. One that administers may also read the metrics; only an admin's may generate too."""

    INFERENCE = "inference"  # may generate
    METRICS = "metrics"  # may read /metrics, and nothing else
    OPERATOR = "operator"  # may see and run the box over the admin API's TLS port
    ADMIN = "admin"  # may all of it


class Need(StrEnum):
    """What a call asks of its key."""

    INFERENCE = "inference"
    METRICS = "metrics"
    ADMINISTRATION = "administration"


_MAY: dict[Role, frozenset[Need]] = {
    Role.INFERENCE: frozenset({Need.INFERENCE}),
    Role.METRICS: frozenset({Need.METRICS}),
    Role.OPERATOR: frozenset({Need.METRICS, Need.ADMINISTRATION}),
    Role.ADMIN: frozenset(Need),
}


def may(role: Role, need: Need) -> bool:
    return need in _MAY[role]


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
    """Who makes a change. origin: "socket", "command", "tls ADDRESS"."""

    name: str
    origin: str
