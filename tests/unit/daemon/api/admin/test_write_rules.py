"""ETags, If-Match, Idempotency-Key, dry runs, and parameters nobody knows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from fastapi.routing import APIRoute

from daemon.api.admin.app import ROUTERS
from daemon.api.admin.write_rules import tag_of
from daemon.tenants import audit
from daemon.workers.states import WorkerState
from tests.fakes.fake_admin import AdminParts, admin_socket, worker_view
from tests.fakes.fake_services import FakeServices, fake_services


@pytest.fixture
async def services(short_dir: Path) -> AsyncIterator[FakeServices]:
    async with fake_services(short_dir) as made:
        yield made


@pytest.fixture
async def served(services: FakeServices, short_dir: Path) -> AsyncIterator[tuple[AdminParts, httpx.AsyncClient]]:
    async with admin_socket(services, short_dir / "admin.sock") as made:
        yield made


@pytest.fixture
def admin(served: tuple[AdminParts, httpx.AsyncClient]) -> httpx.AsyncClient:
    return served[1]


@pytest.fixture
def parts(served: tuple[AdminParts, httpx.AsyncClient]) -> AdminParts:
    return served[0]


async def num_audited(parts: AdminParts) -> int:
    return (await parts.store.read(audit.verify)).entries


async def test_unchanged_answer_costs_nothing(admin: httpx.AsyncClient) -> None:
    first = await admin.get("tenants")
    again = await admin.get("tenants", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]
    await admin.post("tenants", json={"name": "acme"})
    changed = await admin.get("tenants", headers={"if-none-match": first.headers["etag"]})
    assert changed.status_code == 200


def test_tag_tells_a_decision_from_a_moving_figure() -> None:
    def tag(state: str, age: int, as_of: int) -> list[bytes]:
        return tag_of(f'{{"as_of":{as_of},"items":[{{"state":"{state}","step_age_s":{age}}}]}}'.encode()).split(b".")

    assert tag("ready", 1, 1) == tag("ready", 1, 2)
    version, content = tag("ready", 1, 1)
    assert tag("ready", 2, 1)[0] == version
    assert tag("ready", 2, 1)[1] != content
    assert tag("lost", 1, 1)[0] != version


async def test_write_on_what_has_changed_is_refused_and_does_nothing(
    admin: httpx.AsyncClient, parts: AdminParts
) -> None:
    await admin.post("tenants", json={"name": "acme"})
    seen = (await admin.get("tenants/acme")).headers["etag"]
    body = {"limits": {"max_concurrency": 2}}
    assert (await admin.put("tenants/acme/limits", json=body, headers={"if-match": seen})).status_code == 200
    late = await admin.put("tenants/acme/limits", json={"limits": {}}, headers={"if-match": seen})
    assert (late.status_code, late.json()["code"]) == (409, "changed")
    assert (await admin.get("tenants/acme")).json()["item"]["limits"]["max_concurrency"] == 2
    parts.supervisor.shown = [worker_view(WorkerState.LATCHED, step_age_s=1.0)]
    tag = (await admin.get("workers/w")).headers["etag"]
    parts.supervisor.shown = [worker_view(WorkerState.READY, since_at=parts.supervisor.shown[0].since_at)]
    assert (await admin.post("workers/w/restart", headers={"if-match": tag})).status_code == 409
    assert parts.supervisor.restarted == []


async def test_request_sent_twice_is_done_once(admin: httpx.AsyncClient, parts: AdminParts) -> None:
    headers = {"idempotency-key": "one"}
    first, second = await asyncio.gather(
        admin.post("tenants", json={"name": "acme"}, headers=headers),
        admin.post("tenants", json={"name": "acme"}, headers=headers),
    )
    assert (first.status_code, second.status_code) == (201, 201)
    assert first.json() == second.json()
    keys = [(await admin.post("tenants/acme/keys", json={}, headers={"idempotency-key": "k"})).json() for _ in range(3)]
    assert len({key["secret"] for key in keys}) == 1
    other = await admin.post("tenants", json={"name": "other"}, headers=headers)
    assert (other.status_code, other.json()["param"]) == (400, "Idempotency-Key")
    assert (await admin.post("tenants", json={"name": "x"}, headers={"idempotency-key": ""})).status_code == 400
    assert len(await parts.tenants.keys()) == 2


async def test_dry_run_tells_and_does_nothing(admin: httpx.AsyncClient, parts: AdminParts) -> None:
    await admin.post("tenants", json={"name": "acme"})
    key = (await admin.post("tenants/acme/keys", json={})).json()["item"]
    parts.supervisor.shown = [worker_view(WorkerState.READY, inflight=3)]
    before = await num_audited(parts)
    for path, body, says in (
        ("workers/w/restart", None, "3 requests in flight"),
        ("workers/w/drain", None, "waited for"),
        ("workers/w/stop", None, "30 s"),
        ("workers/w/kill", None, "end with an error"),
        ("tenants/acme/suspend", None, "1 active keys"),
        (f"keys/{key['id']}/revoke", None, "refused at once"),
        (f"keys/{key['id']}/rotate", {"overlap_s": 60}, "60 s more"),
        ("admission/pause", None, "503"),
    ):
        answer = (await admin.post(f"{path}?dry_run=true", json=body)).json()
        assert answer["dry_run"] is True, path
        assert says in " ".join(answer["consequences"]), path
    assert await num_audited(parts) == before
    assert parts.supervisor.restarted == []
    assert (await admin.get("tenants/acme")).json()["item"]["state"] == "active"


async def test_dry_run_of_what_has_none_is_refused(admin: httpx.AsyncClient) -> None:
    answer = await admin.post("tenants?dry_run=true", json={"name": "acme"})
    assert (answer.status_code, answer.json()["param"]) == (400, "dry_run")
    assert (await admin.get("tenants/acme")).status_code == 404
    assert (await admin.get("usage?bye=hour")).json()["param"] == "bye"


def test_every_write_that_disturbs_service_has_a_dry_run() -> None:
    disturbing = {"restart", "drain", "stop", "kill", "suspend", "revoke", "rotate", "pause", "cancel", "activate"}
    walked = set()
    for router in ROUTERS:
        for route in router.routes:
            last = route.path.rpartition("/")[2] if isinstance(route, APIRoute) else ""
            if isinstance(route, APIRoute) and last in disturbing and "operations" not in route.path:
                names = {field.alias for field in route.dependant.query_params}
                assert "dry_run" in names, route.path
                walked.add(last)
    assert walked == disturbing
