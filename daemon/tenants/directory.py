"""Tenants and keys as stored: the queries, each in the caller's transaction, each change with its audit entry."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from daemon.store.base import utc_now
from daemon.store.schema import ApiKey, Limit, Tenant
from daemon.tenants import audit
from daemon.tenants.keys import IssuedKey, KeyRecord, digest_of, new_id, new_secret, prefix_of
from daemon.tenants.limits import TenantLimits
from daemon.tenants.principal import Actor, Role
from engine.errors import Conflict, NotFound

_PLAIN_LIMITS = tuple(field.name for field in fields(TenantLimits) if field.name != "models")


@dataclass(frozen=True, slots=True)
class TenantRecord:
    """state: active, suspended. priority: lower runs first."""

    id: str
    name: str
    state: str
    priority: int
    created_at: datetime
    limits: TenantLimits


def all_tenants(session: Session) -> list[TenantRecord]:
    limits = {row.tenant_id: row for row in session.scalars(select(Limit))}
    rows = session.scalars(select(Tenant).order_by(Tenant.name))
    return [_tenant(row, limits.get(row.id)) for row in rows]


def all_keys(session: Session) -> list[KeyRecord]:
    return [_key(row) for row in session.scalars(select(ApiKey).order_by(ApiKey.created_at, ApiKey.id))]


def find_tenant(session: Session, id_or_name: str) -> TenantRecord:
    """Raises: NotFound"""
    row = _find_row(session, id_or_name)
    return _tenant(row, session.get(Limit, row.id))


def create_tenant(session: Session, actor: Actor, name: str, limits: TenantLimits, priority: int) -> TenantRecord:
    """Raises: Conflict if the name is taken"""
    if session.scalars(select(Tenant).where(Tenant.name == name)).first():
        raise Conflict(f"There is already a tenant named {name!r}.", "See `bayard tenants list`.", param="name")
    now = utc_now()
    row = Tenant(id=new_id("t"), name=name, state="active", priority=priority, created_at=now)
    session.add(row)
    session.flush()
    limit = _write_limits(session, row.id, limits)
    record = _tenant(row, limit)
    audit.append(session, actor, "tenant.create", f"tenant:{name}", after=_tenant_facts(record))
    return record


def set_limits(session: Session, actor: Actor, id_or_name: str, limits: TenantLimits, priority: int) -> TenantRecord:
    """Replace the limits as a whole. Raises: NotFound"""
    row = _find_row(session, id_or_name)
    before = _tenant(row, session.get(Limit, row.id))
    row.priority = priority
    after = _tenant(row, _write_limits(session, row.id, limits))
    audit.append(
        session, actor, "tenant.limits", f"tenant:{row.name}", before=_tenant_facts(before), after=_tenant_facts(after)
    )
    return after


def set_state(session: Session, actor: Actor, id_or_name: str, state: str) -> TenantRecord:
    """Raises: NotFound"""
    row = _find_row(session, id_or_name)
    before, row.state = row.state, state
    audit.append(session, actor, "tenant.state", f"tenant:{row.name}", before={"state": before}, after={"state": state})
    return _tenant(row, session.get(Limit, row.id))


def change_tenant(
    session: Session, actor: Actor, id_or_name: str, *, name: str | None, priority: int | None
) -> TenantRecord:
    """Another name or priority; None leaves it. Raises: NotFound, Conflict if the name is taken"""
    row = _find_row(session, id_or_name)
    before = {"name": row.name, "priority": row.priority}
    if name is not None and name != row.name:
        if session.scalars(select(Tenant).where(Tenant.name == name)).first():
            raise Conflict(f"There is already a tenant named {name!r}.", "See `bayard tenants list`.", param="name")
        row.name = name
    row.priority = row.priority if priority is None else priority
    after = {"name": row.name, "priority": row.priority}
    if after != before:
        audit.append(session, actor, "tenant.change", f"tenant:{before['name']}", before=before, after=after)
    return _tenant(row, session.get(Limit, row.id))


def delete_tenant(session: Session, actor: Actor, id_or_name: str) -> TenantRecord:
    """With its keys, limits, stored answers, files and batches; usage and audit stay. Raises: NotFound, Conflict"""
    row = _find_row(session, id_or_name)
    if row.state == "active":
        raise Conflict(
            f"The tenant {row.name} is active.",
            f"Suspend it first: `bayard tenants suspend {row.name}`.",
            param="tenant",
        )
    record = _tenant(row, session.get(Limit, row.id))
    keys = [key.prefix for key in session.scalars(select(ApiKey).where(ApiKey.tenant_id == row.id))]
    session.delete(row)
    session.flush()
    audit.append(
        session, actor, "tenant.delete", f"tenant:{record.name}", before=_tenant_facts(record) | {"keys": keys}
    )
    return record


def issue_key(
    session: Session, actor: Actor, id_or_name: str, *, name: str, role: Role, expires_at: datetime | None
) -> IssuedKey:
    """Raises: NotFound"""
    tenant = _find_row(session, id_or_name)
    secret = new_secret()
    record = KeyRecord(
        id=new_id("k"),
        tenant_id=tenant.id,
        name=name,
        prefix=prefix_of(secret),
        digest=digest_of(secret),
        role=role,
        created_at=utc_now(),
        expires_at=expires_at,
    )
    session.add(_key_row(record))
    facts = {"id": record.id, "prefix": record.prefix, "role": role.value, "name": name, "expires_at": expires_at}
    audit.append(session, actor, "key.issue", f"tenant:{tenant.name}", after=facts)
    return IssuedKey(record, secret)


def revoke_key(session: Session, actor: Actor, id_or_prefix: str) -> KeyRecord:
    """Harmless when repeated. Raises: NotFound, Conflict if a prefix names several keys"""
    row = _find_key(session, id_or_prefix)
    if row.revoked_at is None:
        row.revoked_at = utc_now()
        facts = {"id": row.id, "prefix": row.prefix}
        audit.append(session, actor, "key.revoke", f"key:{row.id}", before=facts, after=facts | {"revoked": True})
    return _key(row)


def rotate_key(
    session: Session, actor: Actor, id_or_prefix: str, *, overlap: timedelta, expires_at: datetime | None
) -> IssuedKey:
    """A new key in the place of one that goes on working for `overlap`. Raises: NotFound, Conflict"""
    old = _find_key(session, id_or_prefix)
    now = utc_now()
    if not _key(old).usable_at(now):
        raise Conflict(f"The key {old.id} is no longer valid.", "Make a new one: `bayard keys create`.")
    if old.replaced_by is not None:
        raise Conflict(f"The key {old.id} was replaced by {old.replaced_by}.", "Rotate that one.")
    secret = new_secret()
    record = KeyRecord(
        id=new_id("k"),
        tenant_id=old.tenant_id,
        name=old.name,
        prefix=prefix_of(secret),
        digest=digest_of(secret),
        role=Role(old.role),
        created_at=now,
        expires_at=expires_at,
    )
    session.add(_key_row(record))
    end = now + overlap
    old.expires_at = end if old.expires_at is None else min(old.expires_at, end)
    old.replaced_by = record.id
    before = {"id": old.id, "prefix": old.prefix}
    after = {"id": record.id, "prefix": record.prefix, "old_until": old.expires_at, "expires_at": expires_at}
    audit.append(session, actor, "key.rotate", f"key:{old.id}", before=before, after=after)
    return IssuedKey(record, secret)


def key_record(session: Session, id_or_prefix: str) -> KeyRecord:
    """Raises: NotFound, Conflict if a prefix names several keys"""
    return _key(_find_key(session, id_or_prefix))


def _find_key(session: Session, id_or_prefix: str) -> ApiKey:
    query = select(ApiKey).where((ApiKey.id == id_or_prefix) | (ApiKey.prefix == id_or_prefix)).limit(2)
    rows = list(session.scalars(query))
    if not rows:
        raise NotFound(f"There is no key {id_or_prefix!r}.", "See `bayard keys list`.")
    if len(rows) > 1:
        raise Conflict(f"The prefix {id_or_prefix!r} names several keys.", "Name the key by its id.")
    return rows[0]


def _key_row(record: KeyRecord) -> ApiKey:
    return ApiKey(**{**asdict(record), "role": record.role.value})


def _find_row(session: Session, id_or_name: str) -> Tenant:
    row = session.scalars(select(Tenant).where((Tenant.id == id_or_name) | (Tenant.name == id_or_name))).first()
    if row is None:
        raise NotFound(
            f"There is no tenant {id_or_name!r}.", f"Make it: `bayard tenants create {id_or_name}`.", param="tenant"
        )
    return row


def _write_limits(session: Session, tenant_id: str, limits: TenantLimits) -> Limit:
    row = session.get(Limit, tenant_id)
    if row is None:
        row = Limit(tenant_id=tenant_id)
        session.add(row)
    for name in _PLAIN_LIMITS:
        setattr(row, name, getattr(limits, name))
    row.models_json = None if limits.models is None else json.dumps(sorted(limits.models))
    row.updated_at = utc_now()
    session.flush()
    return row


def _tenant(row: Tenant, limit: Limit | None) -> TenantRecord:
    limits = TenantLimits()
    if limit is not None:
        limits = TenantLimits(
            **{name: getattr(limit, name) for name in _PLAIN_LIMITS},
            models=None if limit.models_json is None else frozenset(json.loads(limit.models_json)),
        )
    return TenantRecord(row.id, row.name, row.state, row.priority, row.created_at, limits)


def _tenant_facts(record: TenantRecord) -> dict[str, Any]:
    limits = asdict(record.limits)
    models = record.limits.models
    limits["models"] = None if models is None else sorted(models)
    return {"id": record.id, "name": record.name, "priority": record.priority, "limits": limits}


def _key(row: ApiKey) -> KeyRecord:
    return KeyRecord(
        id=row.id,
        tenant_id=row.tenant_id,
        name=row.name,
        prefix=row.prefix,
        digest=row.digest,
        role=Role(row.role),
        created_at=row.created_at,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
        last_used_at=row.last_used_at,
        replaced_by=row.replaced_by,
    )
