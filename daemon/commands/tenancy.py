"""Tenants and keys for the commands: through the running daemon, or with the same service in this process.

Both ways answer the same dictionaries, those of the admin API.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import quote

from daemon.commands.client import AdminClient, Offline, offline_or_admin
from daemon.settings import Settings

if TYPE_CHECKING:
    from daemon.tenants.directory import TenantRecord
    from daemon.tenants.service import TenantService

Fields = dict[str, Any]
R = TypeVar("R")


class Tenancy(Protocol):
    def tenants(self) -> list[Fields]: ...
    def create_tenant(self, name: str, priority: int, limits: Fields) -> Fields: ...
    def set_limits(self, tenant: str, priority: int, limits: Fields) -> Fields: ...
    def set_suspended(self, tenant: str, suspended: bool) -> Fields: ...
    def change_tenant(self, tenant: str, body: Fields) -> Fields: ...
    def delete_tenant(self, tenant: str) -> str: ...
    def keys(self, tenant: str | None) -> list[Fields]: ...
    def issue_key(self, tenant: str, body: Fields) -> tuple[Fields, str]: ...
    def revoke_key(self, key: str) -> Fields: ...
    def rotate_key(self, key: str, body: Fields) -> tuple[Fields, str]: ...


@contextmanager
def tenancy(settings: Settings) -> Iterator[Tenancy]:
    """Whichever way there is now."""
    with offline_or_admin(settings) as reach:
        if reach.admin is not None:
            yield ThroughDaemon(reach.admin)
        else:
            assert reach.offline is not None
            yield InThisProcess(reach.offline)


class ThroughDaemon:
    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin

    def tenants(self) -> list[Fields]:
        return self._admin.all_items("tenants")

    def create_tenant(self, name: str, priority: int, limits: Fields) -> Fields:
        return _item(self._admin.post("tenants", {"name": name, "priority": priority, "limits": limits}))

    def set_limits(self, tenant: str, priority: int, limits: Fields) -> Fields:
        return _item(self._admin.put(f"tenants/{_segment(tenant)}/limits", {"priority": priority, "limits": limits}))

    def set_suspended(self, tenant: str, suspended: bool) -> Fields:
        return _item(self._admin.post(f"tenants/{_segment(tenant)}/{'suspend' if suspended else 'resume'}"))

    def change_tenant(self, tenant: str, body: Fields) -> Fields:
        return _item(self._admin.patch(f"tenants/{_segment(tenant)}", body))

    def delete_tenant(self, tenant: str) -> str:
        return str(self._admin.delete(f"tenants/{_segment(tenant)}")["deleted"])

    def keys(self, tenant: str | None) -> list[Fields]:
        return self._admin.all_items(f"tenants/{_segment(tenant)}/keys" if tenant else "keys")

    def issue_key(self, tenant: str, body: Fields) -> tuple[Fields, str]:
        answer = self._admin.post(f"tenants/{_segment(tenant)}/keys", body)
        return _item(answer), str(answer["secret"])

    def revoke_key(self, key: str) -> Fields:
        return _item(self._admin.post(f"keys/{_segment(key)}/revoke"))

    def rotate_key(self, key: str, body: Fields) -> tuple[Fields, str]:
        answer = self._admin.post(f"keys/{_segment(key)}/rotate", body)
        return _item(answer), str(answer["secret"])


class InThisProcess:
    """The daemon does not run: its service, on the store that this process holds."""

    def __init__(self, offline: Offline) -> None:
        from daemon.api.admin import keys as key_shapes
        from daemon.api.admin import tenants as shapes
        from daemon.tenants.service import TenantService

        self._shapes = shapes
        self._key_shapes = key_shapes
        self._service = TenantService(offline.store, offline.settings.limits.max_queue)
        self._actor = offline.actor()

    def tenants(self) -> list[Fields]:
        async def read(service: TenantService) -> list[Fields]:
            keys = await service.keys()
            return [
                self._shapes.tenant_item(tenant, keys, 0).model_dump(mode="json") for tenant in await service.tenants()
            ]

        return self._run(read)

    def create_tenant(self, name: str, priority: int, limits: Fields) -> Fields:
        kept = self._shapes.LimitsBody(**limits).limits()
        return self._tenant(lambda service: service.create_tenant(self._actor, name, kept, priority))

    def set_limits(self, tenant: str, priority: int, limits: Fields) -> Fields:
        kept = self._shapes.LimitsBody(**limits).limits()
        return self._tenant(lambda service: service.set_limits(self._actor, tenant, kept, priority))

    def set_suspended(self, tenant: str, suspended: bool) -> Fields:
        if suspended:
            return self._tenant(lambda service: service.suspend(self._actor, tenant))
        return self._tenant(lambda service: service.resume(self._actor, tenant))

    def change_tenant(self, tenant: str, body: Fields) -> Fields:
        asked = self._shapes.TenantChange(**body)
        return self._tenant(
            lambda service: service.change_tenant(self._actor, tenant, name=asked.name, priority=asked.priority)
        )

    def delete_tenant(self, tenant: str) -> str:
        return self._run(lambda service: service.delete_tenant(self._actor, tenant)).name

    def keys(self, tenant: str | None) -> list[Fields]:
        async def read(service: TenantService) -> list[Fields]:
            tenant_id = (await service.tenant(tenant)).id if tenant else None
            return [self._key_shapes.key_item(key).model_dump(mode="json") for key in await service.keys(tenant_id)]

        return self._run(read)

    def issue_key(self, tenant: str, body: Fields) -> tuple[Fields, str]:
        asked = self._key_shapes.KeyBody(**body)
        issued = self._run(
            lambda service: service.issue_key(
                self._actor, tenant, name=asked.name, role=asked.role, expires_at=asked.expires_at
            )
        )
        return self._key_shapes.key_item(issued.record).model_dump(mode="json"), issued.secret

    def revoke_key(self, key: str) -> Fields:
        record = self._run(lambda service: service.revoke_key(self._actor, key))
        item: Fields = self._key_shapes.key_item(record).model_dump(mode="json")
        return item

    def rotate_key(self, key: str, body: Fields) -> tuple[Fields, str]:
        asked = self._key_shapes.RotateBody(**body)
        issued = self._run(
            lambda service: service.rotate_key(
                self._actor, key, overlap=timedelta(seconds=asked.overlap_s), expires_at=asked.expires_at
            )
        )
        return self._key_shapes.key_item(issued.record).model_dump(mode="json"), issued.secret

    def _tenant(self, change: Callable[[TenantService], Coroutine[Any, Any, TenantRecord]]) -> Fields:
        async def run(service: TenantService) -> Fields:
            changed = await change(service)
            item: Fields = self._shapes.tenant_item(changed, await service.keys(), 0).model_dump(mode="json")
            return item

        return self._run(run)

    def _run(self, work: Callable[[TenantService], Coroutine[Any, Any, R]]) -> R:
        return asyncio.run(work(self._service))


def _segment(name: str) -> str:
    return quote(name, safe="")


def _item(answer: Any) -> Fields:
    return dict(answer["item"])
