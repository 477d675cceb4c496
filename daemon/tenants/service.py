"""TenantService: the daemon's knowledge of tenants and keys, in memory for requests, in the store for good."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from sqlalchemy.orm import Session

from daemon.store.base import utc_now
from daemon.store.session import Store
from daemon.tenants import audit, directory
from daemon.tenants.admission import Admission
from daemon.tenants.brake import Brake
from daemon.tenants.directory import TenantRecord
from daemon.tenants.keys import MAX_KEY_CHARS, IssuedKey, KeyRecord, digest_of, same_digest
from daemon.tenants.limits import TenantLimits
from daemon.tenants.principal import Actor, Need, Principal, Role, may
from daemon.tenants.quota import Period
from daemon.tenants.usage import UsageLedger, tokens_since
from engine.errors import Conflict, InvalidParameter, PermissionDenied, Unauthenticated

MAX_NAME_CHARS = 64
LONGEST_OVERLAP = timedelta(days=90)
LATEST_EXPIRY = datetime(9999, 1, 1, tzinfo=UTC)
R = TypeVar("R")


def _nothing_waits() -> int:
    return 0


class TenantService:
    """Authenticates from memory, which every change refreshes before it returns: a revoked key fails at once.

    Owner: the Appliance. An offline command uses it too, without start().
    """

    def __init__(self, store: Store, max_queue: int, engine_waiting: Callable[[], int] = _nothing_waits) -> None:
        self._store = store
        self._principals: dict[str, tuple[KeyRecord, Principal]] = {}
        self._suspended: frozenset[str] = frozenset()
        self.admission = Admission(max_queue, engine_waiting)
        self.usage = UsageLedger(store)
        self.brake = Brake()

    async def start(self) -> None:
        """Read every tenant, key and what the running month used; then settle usage regularly. Raises: StoreError"""
        await self._refresh()
        await self._recall_quotas()
        self.usage.start()

    async def stop(self) -> None:
        await self.usage.stop()

    # ------------------------------------------------------------------ requests

    def authenticate(self, secret: str | None, address: str | None = None, need: Need = Need.INFERENCE) -> Principal:
        """Whose key this is, and that it may call at all: the door of HTTP and gRPC alike.

        Raises: as identify; QuotaExceeded while one of the tenant's rates is spent
        """
        principal = self.identify(secret, address, need)
        self.admission.knock(principal)
        return principal

    def identify(self, secret: str | None, address: str | None = None, need: Need = Need.INFERENCE) -> Principal:
        """Whose key this is. address: of the client, whose wrong guesses are slowed; None: it is not counted.

        Raises: Unauthenticated; TooManyAttempts; PermissionDenied for a suspended tenant or a key of another role
        """
        if not secret:
            hint = (
                "Send it as `Authorization: Bearer KEY`."
                if self._principals
                else "None has been made yet: `bayard tenants create demo`, then `bayard keys create --tenant demo`."
            )
            raise Unauthenticated("An API key is needed.", hint)
        digest = digest_of(secret) if len(secret) <= MAX_KEY_CHARS else ""
        self.brake.check(address, digest)
        found = self._principals.get(digest)
        if found is None or not same_digest(found[0].digest, digest) or not found[0].usable_at(utc_now()):
            self.brake.failed(address)
            raise Unauthenticated(
                "The API key is not known, has expired or was revoked.",
                "Ask the administrator for a new one: `bayard keys create --tenant NAME`.",
            )
        self.brake.succeeded(address, digest)
        principal = found[1]
        self.usage.seen(principal.key_id)  # also where it asks for no tokens, or for what it may not have
        if principal.tenant_id in self._suspended:
            raise PermissionDenied(f"The tenant {principal.tenant_name} is suspended.", "Ask the administrator.")
        if not may(principal.role, need):
            raise PermissionDenied(
                f"The key {principal.key_prefix}.. has the role {principal.role}; this needs one for {need}.",
                "Ask the administrator for a key of another role.",
            )
        return principal

    # ------------------------------------------------------------------ administration

    async def tenants(self) -> list[TenantRecord]:
        return await self._store.read(directory.all_tenants)

    async def tenant(self, id_or_name: str) -> TenantRecord:
        """Raises: NotFound"""
        return await self._store.read(lambda session: directory.find_tenant(session, id_or_name))

    async def keys(self, tenant_id: str | None = None) -> list[KeyRecord]:
        keys = await self._store.read(directory.all_keys)
        return [key for key in keys if tenant_id is None or key.tenant_id == tenant_id]

    async def create_tenant(
        self, actor: Actor, name: str, limits: TenantLimits | None = None, priority: int = 0
    ) -> TenantRecord:
        """Raises: InvalidParameter, Conflict"""
        check_name(name)
        kept = limits or TenantLimits()
        return await self._change(lambda session: directory.create_tenant(session, actor, name, kept, priority))

    async def set_limits(self, actor: Actor, id_or_name: str, limits: TenantLimits, priority: int = 0) -> TenantRecord:
        """Raises: NotFound"""
        return await self._change(lambda session: directory.set_limits(session, actor, id_or_name, limits, priority))

    async def suspend(self, actor: Actor, id_or_name: str) -> TenantRecord:
        """Raises: NotFound"""
        return await self._change(lambda session: directory.set_state(session, actor, id_or_name, "suspended"))

    async def resume(self, actor: Actor, id_or_name: str) -> TenantRecord:
        """Raises: NotFound"""
        return await self._change(lambda session: directory.set_state(session, actor, id_or_name, "active"))

    async def change_tenant(
        self, actor: Actor, id_or_name: str, *, name: str | None = None, priority: int | None = None
    ) -> TenantRecord:
        """Raises: NotFound, InvalidParameter, Conflict"""
        if name is not None:
            check_name(name)
        return await self._change(
            lambda session: directory.change_tenant(session, actor, id_or_name, name=name, priority=priority)
        )

    async def delete_tenant(self, actor: Actor, id_or_name: str) -> TenantRecord:
        """Raises: NotFound; Conflict while it is active, or requests of it run"""
        running = self.admission.running_of((await self.tenant(id_or_name)).id)
        if running:
            raise Conflict(f"{running} requests of the tenant run.", "Wait for them, or cancel them.", param="tenant")
        return await self._change(lambda session: directory.delete_tenant(session, actor, id_or_name))

    async def issue_key(
        self,
        actor: Actor,
        tenant: str,
        *,
        name: str = "",
        role: Role = Role.INFERENCE,
        expires_at: datetime | None = None,
    ) -> IssuedKey:
        """Raises: NotFound, InvalidParameter for a time that has passed"""
        if name:
            check_name(name)
        self._require_expiry(expires_at)
        return await self._change(
            lambda session: directory.issue_key(session, actor, tenant, name=name, role=role, expires_at=expires_at)
        )

    async def revoke_key(self, actor: Actor, id_or_prefix: str) -> KeyRecord:
        """The key is refused from the moment this returns. Raises: NotFound, Conflict"""
        return await self._change(lambda session: directory.revoke_key(session, actor, id_or_prefix))

    async def rotate_key(
        self, actor: Actor, id_or_prefix: str, *, overlap: timedelta, expires_at: datetime | None = None
    ) -> IssuedKey:
        """A new key; the old one is refused once `overlap` is over. Raises: NotFound, Conflict, InvalidParameter"""
        if not timedelta(0) <= overlap <= LONGEST_OVERLAP:
            raise InvalidParameter(
                f"The overlap of {overlap} is not between 0 and {LONGEST_OVERLAP.days} days.", param="overlap_s"
            )
        self._require_expiry(expires_at)
        return await self._change(
            lambda session: directory.rotate_key(session, actor, id_or_prefix, overlap=overlap, expires_at=expires_at)
        )

    async def key(self, id_or_prefix: str) -> KeyRecord:
        """Raises: NotFound, Conflict"""
        return await self._store.read(lambda session: directory.key_record(session, id_or_prefix))

    async def record(
        self,
        actor: Actor,
        action: str,
        subject: str,
        after: dict[str, Any] | None = None,
        before: dict[str, Any] | None = None,
    ) -> None:
        """Write an audit entry for a change that lies outside the store."""
        await self._store.write(
            lambda session: audit.append(session, actor, action, subject, before=before, after=after)
        )

    @staticmethod
    def _require_expiry(expires_at: datetime | None) -> None:
        if expires_at is None:
            return
        if expires_at <= utc_now():
            raise InvalidParameter(f"The expiry {expires_at.isoformat()} has passed.", param="expires_at")
        if expires_at >= LATEST_EXPIRY:  # in UTC it may be of the year 10000
            raise InvalidParameter(f"The expiry {expires_at.isoformat()} is after the year 9998.", param="expires_at")

    async def _recall_quotas(self) -> None:
        """What is settled of the running day and month counts on after a restart."""
        now = utc_now()
        for period in Period:
            start = period.start_of(now)
            used = await self._store.read(lambda session, since=start: tokens_since(session, since))  # type: ignore[misc]
            for tenant_id, tokens in used.items():
                quotas = self.admission.quotas_of(tenant_id)
                quota = quotas.day if period is Period.DAY else quotas.month
                quota.window(now).used += tokens

    def principal_of(self, key_id: str) -> Principal:
        """Who a key stands for now, for work that goes on without its client.

        Raises: Unauthenticated once it may not generate any more; PermissionDenied while its tenant is suspended
        """
        for key, principal in self._principals.values():
            if key.id == key_id and key.usable_at(utc_now()) and may(principal.role, Need.INFERENCE):
                if principal.tenant_id in self._suspended:
                    raise PermissionDenied(f"The tenant {principal.tenant_name} is suspended.")
                return principal
        raise Unauthenticated(f"The key {key_id} was revoked or has expired.")

    async def _change(self, fn: Callable[[Session], R]) -> R:
        result = await self._store.write(fn)
        await self._refresh()
        return result

    async def _refresh(self) -> None:
        tenants, keys = await self._store.read(
            lambda session: (directory.all_tenants(session), directory.all_keys(session))
        )
        by_id = {tenant.id: tenant for tenant in tenants}
        self._suspended = frozenset(tenant.id for tenant in tenants if tenant.state != "active")
        self._principals = {
            key.digest: (key, _principal(key, by_id[key.tenant_id]))
            for key in keys
            if key.tenant_id in by_id and key.revoked_at is None  # what never opens a door again is not remembered
        }


def check_name(name: str) -> None:
    """Raises: InvalidParameter"""
    if not 1 <= len(name) <= MAX_NAME_CHARS or not name.isprintable() or name != name.strip() or "/" in name:
        raise InvalidParameter(
            f"The name {name[:MAX_NAME_CHARS]!r} has {len(name)} characters; "
            f"1 to {MAX_NAME_CHARS} printable ones are allowed, without a slash and with no space around them.",
            param="name",
        )


def _principal(key: KeyRecord, tenant: TenantRecord) -> Principal:
    return Principal(
        tenant_id=tenant.id,
        tenant_name=tenant.name,
        key_id=key.id,
        key_prefix=key.prefix,
        role=key.role,
        limits=tenant.limits,
        priority=tenant.priority,
    )
