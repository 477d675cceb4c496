"""The first key is made once, for an administrator, in a file that nobody else can read."""

from __future__ import annotations

from pathlib import Path

from daemon.store.session import Store
from daemon.tenants.first_key import FILE, make_first_key
from daemon.tenants.principal import Role
from daemon.tenants.service import TenantService


async def test_first_start_makes_one_admin_key_and_no_other_start_does(store: Store, tmp_path: Path) -> None:
    service = TenantService(store, 10)
    path = await make_first_key(service, tmp_path)
    assert path == tmp_path / FILE
    assert path.stat().st_mode & 0o777 == 0o600
    principal = service.authenticate(path.read_text().strip())
    assert (principal.tenant_name, principal.role) == ("administration", Role.ADMIN)
    assert await make_first_key(service, tmp_path) is None
    assert len(await service.keys()) == 1
