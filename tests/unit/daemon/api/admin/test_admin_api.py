"""The admin API on its socket: what it shows, what it changes, who may, and the audit of every change."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute

from daemon.api.admin.app import PREFIX, ROUTERS, build_admin_app
from daemon.api.admin.peer import AdminRole, caller_of
from daemon.tenants import audit
from daemon.tenants.usage import UsageSum
from daemon.workers.states import WorkerState
from daemon.workers.view import ExitInfo
from tests.fakes.fake_admin import AdminParts, admin_socket, knobs_of, worker_view
from tests.fakes.fake_services import MODEL, FakeServices, fake_services


@pytest.fixture
async def services(short_dir: Path) -> AsyncIterator[FakeServices]:
    async with fake_services(short_dir) as made:
        yield made


@pytest.fixture
async def served(services: FakeServices, short_dir: Path) -> AsyncIterator[tuple[AdminParts, httpx.AsyncClient]]:
    async with admin_socket(services, short_dir / "admin.sock") as made:
        yield made


@pytest.fixture
def parts(served: tuple[AdminParts, httpx.AsyncClient]) -> AdminParts:
    return served[0]


@pytest.fixture
def admin(served: tuple[AdminParts, httpx.AsyncClient]) -> httpx.AsyncClient:
    return served[1]


def all_routes() -> list[APIRoute]:
    return [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]


def test_walked_routes_are_all_that_the_application_has(parts: AdminParts) -> None:
    paths = build_admin_app(parts).openapi()["paths"]  # type: ignore[arg-type]
    assert sum(len(methods) for methods in paths.values()) == len(all_routes()) > 30


@pytest.mark.parametrize("route", all_routes(), ids=lambda route: f"{'/'.join(route.methods)} {route.path}")
def test_every_route_needs_a_role_and_every_write_more_than_a_viewer(route: APIRoute) -> None:
    needed = [getattr(part.call, "needed_role", None) for part in route.dependant.dependencies]
    (role,) = [one for one in needed if one is not None]
    assert role >= (AdminRole.VIEWER if route.methods == {"GET"} else AdminRole.OPERATOR)


def test_roles_follow_the_peer_that_the_kernel_names() -> None:
    assert caller_of(("uid:0", 5), 1000).role is AdminRole.ADMIN
    assert caller_of(("uid:1000", 5), 1000).role is AdminRole.ADMIN
    assert caller_of(("uid:1001", 5), 1000).role is AdminRole.NONE
    assert caller_of(("127.0.0.1", 5), 1000).role is AdminRole.NONE
    assert caller_of(None, 1000).role is AdminRole.NONE


async def test_caller_without_a_proven_user_is_refused_everywhere(parts: AdminParts) -> None:
    app = build_admin_app(parts)  # type: ignore[arg-type]
    transport = httpx.ASGITransport(app, client=("10.0.0.1", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://bayard") as stranger:
        for route in all_routes():
            body = {"json": {}} if route.methods != {"GET"} else {}
            response = await stranger.request(next(iter(route.methods)), PREFIX + route.path, **body)  # type: ignore[arg-type]
            assert response.status_code == 403, route.path
            assert response.json()["code"] == "permission_denied"


async def test_whoami_is_this_process_user(admin: httpx.AsyncClient) -> None:
    answer = (await admin.get("whoami")).json()
    assert answer["role"] == "admin"
    assert answer["name"] == f"{caller_of((f'uid:{os.getuid()}', 1), 0).name}"


@pytest.mark.parametrize(
    ("states", "state"),
    [
        ([], "serving"),
        ([WorkerState.STARTING], "starting"),
        ([WorkerState.READY, WorkerState.LATCHED], "degraded"),
        ([WorkerState.READY], "serving"),
    ],
)
async def test_status_names_the_state_of_the_whole(
    admin: httpx.AsyncClient, parts: AdminParts, states: list[WorkerState], state: str
) -> None:
    parts.supervisor.shown = [worker_view(one, name=f"w{at}") for at, one in enumerate(states)]
    answer = (await admin.get("status")).json()
    assert answer["state"] == state
    assert bool(answer["reasons"]) == (state == "degraded")
    assert answer["workers_ready"] == states.count(WorkerState.READY)
    assert answer["models"] == [MODEL]
    parts.tenants.admission.draining = True
    assert (await admin.get("status")).json()["state"] == "draining"


async def test_worker_shows_its_figures_and_unknown_as_null(admin: httpx.AsyncClient, parts: AdminParts) -> None:
    latched = worker_view(
        WorkerState.LATCHED, name="dead", pid=None, ready=None, stats=None, progress=None, step_age_s=None,
        reason="5 fast exits", last_exit=ExitInfo(signal=9), last_log_lines=("out of memory",),
    )  # fmt: skip
    parts.supervisor.shown = [worker_view(WorkerState.READY), latched]
    ready, dead = (await admin.get("workers")).json()["items"]
    assert (ready["requests_running"], ready["requests_waiting"], ready["memory_bytes"]) == (2, 1, 1 << 20)
    assert ready["kernels"] == {"gemm": "reference"}
    assert knobs_of(ready).max_running == 64
    assert (dead["last_exit"], dead["log_tail"], dead["requests_running"]) == (
        "killed by signal 9 (SIGKILL)",
        ["out of memory"],
        None,
    )
    assert "restart worker dead" in dead["fix"]
    assert (await admin.get("workers/dead")).json()["item"] == dead
    assert (await admin.get("workers/none")).status_code == 404


async def test_restart_asks_the_supervisor_and_is_audited(admin: httpx.AsyncClient, parts: AdminParts) -> None:
    parts.supervisor.shown = [worker_view(WorkerState.LATCHED)]
    assert (await admin.post("workers/w/restart")).status_code == 200
    ((name, reason),) = parts.supervisor.restarted
    assert name == "w"
    assert "@uds" in reason
    assert await newest_action(parts) == ("worker.restart", "worker:w")


async def test_tenants_and_keys_from_creation_to_revocation(admin: httpx.AsyncClient, parts: AdminParts) -> None:
    made = await admin.post("tenants", json={"name": "acme", "limits": {"max_concurrency": 3, "models": ["b", "a"]}})
    assert made.status_code == 201
    assert made.json()["item"]["limits"]["models"] == ["a", "b"]
    issued = (await admin.post("tenants/acme/keys", json={"name": "ci"})).json()
    principal = parts.tenants.authenticate(issued["secret"])
    assert principal.tenant_name == "acme"
    listed = (await admin.get("tenants/acme/keys")).text
    assert issued["item"]["prefix"] in listed
    assert issued["secret"] not in listed + (await admin.get("keys")).text + (await admin.get("audit")).text
    changed = await admin.put("tenants/acme/limits", json={"limits": {"max_output_tokens": 5}})
    assert changed.json()["item"]["limits"]["max_concurrency"] is None
    assert (await admin.post("tenants/acme/suspend")).json()["item"]["state"] == "suspended"
    assert (await admin.post("tenants/acme/resume")).json()["item"]["state"] == "active"
    assert (await admin.post(f"keys/{issued['item']['id']}/revoke")).json()["item"]["state"] == "revoked"
    names = {item["name"]: item["keys"] for item in (await admin.get("tenants")).json()["items"]}
    assert names == {"acme": 0, "demo": 1}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("tenants", {"name": "x", "limits": {"max_concurency": 3}}, "limits.max_concurency"),
        ("tenants", {"name": "x", "limits": {"max_concurrency": 0}}, "limits.max_concurrency"),
        ("tenants", {"name": "a/b"}, "name"),
        ("tenants", {}, "name"),
        ("tenants/demo/keys", {"role": "root"}, "role"),
        ("tenants/demo/keys", {"expires_at": "2020-01-01T00:00:00Z"}, "expires_at"),
        ("tenants/demo/keys", {"expires_at": "2120-01-01T00:00:00"}, "expires_at"),
        ("imports", {"path": "relative.gguf"}, "path"),
        ("schedule/rules", {"name": "r", "cron": "x", "duration_s": 3600, "plan": "none"}, "cron"),
    ],
)
async def test_wrong_body_is_refused_by_the_field_and_not_audited(
    admin: httpx.AsyncClient, parts: AdminParts, path: str, body: dict[str, Any], param: str
) -> None:
    before = await newest_action(parts)
    response = await admin.post(path, json=body)
    assert response.status_code == 400
    error = response.json()
    assert error["param"] == param
    assert set(error) == {"code", "message", "hint", "request_id", "param"}
    assert response.headers["x-request-id"] == error["request_id"]
    assert await newest_action(parts) == before


async def test_import_is_an_operation_with_its_end(
    admin: httpx.AsyncClient, parts: AdminParts, smollm_path: Path
) -> None:
    started = await admin.post("imports", json={"path": str(smollm_path), "name": "org/tiny:1", "link": True})
    assert started.status_code == 202
    operation = started.json()["item"]
    async with asyncio.timeout(30):
        while operation["ended_at"] is None:
            await asyncio.sleep(0.05)
            operation = (await admin.get(f"operations/{operation['id']}")).json()["item"]
    assert operation["state"] == "done"
    (model,) = (await admin.get("models")).json()["items"]
    assert (model["name"], model["linked"], model["state"]) == ("org/tiny:1", True, "ready")
    assert (await admin.get("models/org/tiny:1")).json()["item"] == model
    assert (await admin.delete("models/org/tiny:1")).json()["deleted"] == "org/tiny:1"
    assert (await admin.get("models")).json()["items"] == []
    assert await newest_action(parts) == ("model.delete", "model:org/tiny:1")


async def test_failed_import_ends_with_its_error(admin: httpx.AsyncClient, tmp_path: Path) -> None:
    broken = tmp_path / "x.gguf"
    broken.write_bytes(b"GGUF\x03\x00\x00\x00")
    operation = (await admin.post("imports", json={"path": str(broken)})).json()["item"]
    async with asyncio.timeout(10):
        while operation["ended_at"] is None:
            await asyncio.sleep(0.02)
            operation = (await admin.get(f"operations/{operation['id']}")).json()["item"]
    assert operation["state"] == "failed"
    assert operation["error"]["code"] == "unsupported_format"


async def test_live_requests_show_counts_and_never_text(
    admin: httpx.AsyncClient, parts: AdminParts, services: FakeServices
) -> None:
    from daemon.api.openai.chat_request import decoder, read_chat

    services.engine.hold = asyncio.Event()
    body = f'{{"model":"{MODEL}","max_tokens":5,"messages":[{{"role":"user","content":"a secret"}}]}}'
    principal = services.tenants.authenticate(services.key)

    async def run() -> None:
        async with await services.serving.open(read_chat(decoder.decode(body)), principal, origin="http") as generation:
            async for _ in generation:
                pass

    running = asyncio.create_task(run())
    while not services.engine.open:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    response = await admin.get("requests")
    (item,) = response.json()["items"]
    assert (item["tenant"], item["state"], item["max_tokens"], item["output_tokens"]) == ("demo", "waiting", 5, 0)
    assert "secret" not in response.text
    assert (await admin.get(f"requests/{item['id']}")).json()["item"]["id"] == item["id"]
    assert (await admin.post(f"requests/{item['id']}/cancel")).status_code == 200
    await asyncio.wait_for(running, 2)
    assert (await admin.post(f"requests/{item['id']}/cancel")).status_code == 404
    summary = (await admin.get("metrics/summary")).json()
    assert (summary["requests_failed"], summary["requests_done"], summary["ttft_p50_s"]) == (1, 0, None)


async def test_events_are_listed_and_streamed_after_the_last_seen(admin: httpx.AsyncClient, parts: AdminParts) -> None:
    first = parts.events.publish("worker", "w", "ready", "lost", "it went away", signal=9)
    second = parts.events.publish("worker", "w", "lost", "backoff", "waits")
    items = (await admin.get("events?limit=1")).json()["items"]
    assert [item["id"] for item in items] == [second.id]
    headers = {"accept": "text/event-stream", "last-event-id": str(first.id)}
    async with admin.stream("GET", "events", headers=headers) as response:
        lines = response.aiter_lines()
        assert await anext(lines) == f"id: {second.id}"
        while await anext(lines):
            pass
        third = parts.events.publish("worker", "w", "backoff", "starting", "again")
        assert await anext(lines) == f"id: {third.id}"
        parts.events.close()


async def test_settings_show_values_and_sources(admin: httpx.AsyncClient) -> None:
    items = {item["key"]: item for item in (await admin.get("settings")).json()["items"]}
    assert items["limits.max_queue"] == {**items["limits.max_queue"], "value": 256, "source": "default"}
    assert items["database_url"]["value"] in ("", "********")


async def test_audit_is_paged_and_verified(admin: httpx.AsyncClient) -> None:
    for name in ("a", "b", "c"):
        await admin.post("tenants", json={"name": name})
    first = (await admin.get("audit?limit=2")).json()
    rest = (await admin.get(f"audit?limit=100&before={first['next']}")).json()
    assert [item["subject"] for item in first["items"]] == ["tenant:c", "tenant:b"]
    assert rest["items"][0]["subject"] == "tenant:a"
    assert rest["next"] is None
    assert (await admin.get("audit/verify")).json()["whole"] is True
    assert (await admin.get(f"audit?before={2**63}")).status_code == 400  # no number of the database's


async def test_limit_that_no_column_holds_is_refused(admin: httpx.AsyncClient) -> None:
    for limits in ({"tokens_per_day": 2**53}, {"requests_per_minute": 2**31}, {"max_queue": 2**31}):
        assert (await admin.post("tenants", json={"name": "a", "limits": limits})).status_code == 400


async def test_usage_is_summed_as_asked(admin: httpx.AsyncClient, parts: AdminParts, services: FakeServices) -> None:
    principal = services.tenants.authenticate(services.key)
    for model in ("a", "a", "b"):
        parts.tenants.usage.add(principal, model, UsageSum(requests=1, prompt_tokens=3, output_tokens=2))
    await parts.tenants.usage.settle()
    for by in ("minute", "hour", "day", "none"):
        items = (await admin.get(f"usage?by={by}")).json()["items"]
        assert sorted((item["model"], item["requests"], item["output_tokens"]) for item in items) == [
            ("a", 2, 4),
            ("b", 1, 2),
        ]
    assert (await admin.get("usage?until=2020-01-01T00:00:00Z")).json()["items"] == []
    assert (await admin.get("usage?since=2020-01-01T00:00:00Z")).status_code == 400
    assert (await admin.get("usage?since=2020-01-01T00:00:00")).status_code == 400


async def test_schedule_shows_the_day_and_refuses_unknown_plans(admin: httpx.AsyncClient) -> None:
    timeline = (await admin.get("schedule/timeline?date=2026-03-29")).json()
    assert [item["plan"] for item in timeline["items"]] == [None]
    assert (await admin.get("schedule/timeline?date=tomorrow")).status_code == 400
    assert (await admin.post("plans/none/activate")).status_code == 404
    assert (await admin.delete("schedule/rules/none")).status_code == 404
    rule = {"name": "r", "cron": "0 8 * * *", "duration_s": 3600, "plan": "none"}
    assert (await admin.post("schedule/rules", json=rule)).status_code == 404


async def test_host_is_this_machine(admin: httpx.AsyncClient) -> None:
    host = (await admin.get("host")).json()
    assert host["memory_total_bytes"] > 1 << 28
    assert host["cpus"] >= 1
    assert (await admin.get("accelerators")).status_code == 200


async def test_unknown_route_and_method_have_the_one_error_shape(admin: httpx.AsyncClient) -> None:
    for method, path, status in (("GET", "nothing", 404), ("PUT", "status", 405)):
        response = await admin.request(method, path)
        assert response.status_code == status
        assert set(response.json()) == {"code", "message", "hint", "request_id", "param"}
    assert (await admin.get("openapi.json")).status_code == 200
    assert PREFIX == "/admin/v1"


async def newest_action(parts: AdminParts) -> tuple[str, str]:
    (record,) = await parts.store.read(lambda session: audit.page(session, limit=1))
    return record.action, record.subject
