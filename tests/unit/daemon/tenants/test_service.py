"""TenantService: who a key is, at once after every change, and nothing of the key in the store."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pytest

from daemon.store.base import utc_now
from daemon.store.session import Store
from daemon.tenants import audit
from daemon.tenants.limits import TenantLimits
from daemon.tenants.principal import Actor, Role
from daemon.tenants.service import TenantService
from engine.errors import Conflict, InvalidParameter, NotFound, PermissionDenied, Unauthenticated

OPS = Actor("ops@uds", "socket")


@pytest.fixture
async def service(store: Store) -> TenantService:
    made = TenantService(store, max_queue=10)
    await made.create_tenant(OPS, "acme", TenantLimits(max_concurrency=2, models=frozenset({"b", "a"})), priority=3)
    return made


async def test_key_names_its_tenant_limits_and_role(service: TenantService) -> None:
    issued = await service.issue_key(OPS, "acme", role=Role.ADMIN)
    principal = service.authenticate(issued.secret)
    assert issued.secret.startswith("bk_live_")
    assert len(issued.secret) >= len("bk_live_") + 43
    assert (principal.tenant_name, principal.role, principal.priority) == ("acme", Role.ADMIN, 3)
    assert principal.limits == TenantLimits(max_concurrency=2, models=frozenset({"a", "b"}))


async def test_key_is_nowhere_in_the_state_folder(service: TenantService, store: Store, tmp_path: Path) -> None:
    issued = await service.issue_key(OPS, "acme")
    await service.revoke_key(OPS, issued.record.id)
    store.close()
    secret = issued.secret.removeprefix(issued.record.prefix).encode()
    for file in tmp_path.rglob("*"):
        if file.is_file():
            assert secret not in file.read_bytes(), file


async def test_revoked_key_is_refused_at_once(service: TenantService) -> None:
    issued = await service.issue_key(OPS, "acme")
    service.authenticate(issued.secret)
    await service.revoke_key(OPS, issued.record.prefix)
    with pytest.raises(Unauthenticated):
        service.authenticate(issued.secret)
    again = await service.revoke_key(OPS, issued.record.id)
    assert again.state_now == "revoked"


async def test_expired_key_is_refused(service: TenantService, monkeypatch: pytest.MonkeyPatch) -> None:
    issued = await service.issue_key(OPS, "acme", expires_at=utc_now() + timedelta(hours=1))
    service.authenticate(issued.secret)
    later = utc_now() + timedelta(hours=2)
    monkeypatch.setattr("daemon.tenants.service.utc_now", lambda: later)
    with pytest.raises(Unauthenticated):
        service.authenticate(issued.secret)
    with pytest.raises(InvalidParameter):
        await service.issue_key(OPS, "acme", expires_at=later - timedelta(hours=1))
    with pytest.raises(InvalidParameter, match="9998"):
        await service.issue_key(OPS, "acme", expires_at=datetime.fromisoformat("9999-12-31T23:59:59-23:59"))


async def test_suspended_tenant_is_forbidden_until_resumed(service: TenantService) -> None:
    issued = await service.issue_key(OPS, "acme")
    await service.suspend(OPS, "acme")
    with pytest.raises(PermissionDenied):
        service.authenticate(issued.secret)
    await service.resume(OPS, "acme")
    service.authenticate(issued.secret)


async def test_changed_limits_hold_for_the_next_request(service: TenantService) -> None:
    issued = await service.issue_key(OPS, "acme")
    await service.set_limits(OPS, "acme", TenantLimits(max_output_tokens=9), priority=0)
    assert service.authenticate(issued.secret).limits == TenantLimits(max_output_tokens=9)


async def test_restart_knows_every_key_again(service: TenantService, store: Store) -> None:
    issued = await service.issue_key(OPS, "acme")
    other = TenantService(store, max_queue=1)
    with pytest.raises(Unauthenticated):
        other.authenticate(issued.secret)
    await other.start()
    assert other.authenticate(issued.secret).key_id == issued.record.id
    await other.stop()


@pytest.mark.parametrize("name", ["", " x", "a/b", "tab\t", "x" * 65, "esc\x1b[2J"])
async def test_name_that_could_deceive_is_refused(service: TenantService, name: str) -> None:
    with pytest.raises(InvalidParameter):
        await service.create_tenant(OPS, name)


async def test_wrong_names_are_told(service: TenantService) -> None:
    with pytest.raises(Conflict):
        await service.create_tenant(OPS, "acme")
    with pytest.raises(NotFound, match="bayard tenants create"):
        await service.issue_key(OPS, "nobody")
    with pytest.raises(NotFound):
        await service.revoke_key(OPS, "k_none")


async def test_every_change_is_in_the_audit_with_its_actor(service: TenantService, store: Store) -> None:
    issued = await service.issue_key(OPS, "acme")
    await service.set_limits(OPS, "acme", TenantLimits())
    await service.suspend(OPS, "acme")
    await service.resume(OPS, "acme")
    await service.revoke_key(OPS, issued.record.id)
    records = await store.read(audit.page)
    assert [record.action for record in reversed(records)] == [
        "tenant.create", "key.issue", "tenant.limits", "tenant.state", "tenant.state", "key.revoke",
    ]  # fmt: skip
    assert {(record.actor, record.origin) for record in records} == {("ops@uds", "socket")}
    assert records[3].before is not None
    assert records[3].before["limits"]["max_concurrency"] == 2
    assert issued.secret not in str(records)


async def test_refused_change_leaves_no_audit(service: TenantService, store: Store) -> None:
    before = await store.read(audit.page)
    with pytest.raises(Conflict):
        await service.create_tenant(OPS, "acme")
    assert await store.read(audit.page) == before
