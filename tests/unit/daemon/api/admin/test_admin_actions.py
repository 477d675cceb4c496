"""What operators do to workers and to admission, the logs they read, and the usage they take away."""

from __future__ import annotations

import asyncio
import csv
import io
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from daemon.tenants import audit
from daemon.tenants.usage import UsageSum
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


async def audited(parts: AdminParts) -> list[str]:
    """Actions, oldest first."""
    found = await parts.store.read(lambda session: audit.page(session, limit=100))
    return [record.action for record in reversed(found)]


async def test_worker_actions_reach_the_supervisor_and_the_audit(admin: httpx.AsyncClient, parts: AdminParts) -> None:
    parts.supervisor.shown = [worker_view(WorkerState.READY)]
    for action in ("drain", "stop", "kill", "wake"):
        assert (await admin.post(f"workers/w/{action}")).status_code == 200, action
    assert [call[0] for call in parts.supervisor.calls] == ["sleep", "sleep", "kill", "wake"]
    assert parts.supervisor.calls[0][2] == 86_400.0
    assert (await admin.post("workers/w/clear-latch")).json()["code"] == "conflict"
    parts.supervisor.shown = [worker_view(WorkerState.LATCHED)]
    assert (await admin.post("workers/w/clear-latch")).status_code == 200
    assert (await audited(parts))[-5:] == [
        f"worker.{name}" for name in ("drain", "stop", "kill", "wake", "clear-latch")
    ]
    assert (await admin.post("workers/none/kill")).status_code == 404


async def test_paused_admission_refuses_and_resumes(
    admin: httpx.AsyncClient, parts: AdminParts, services: FakeServices
) -> None:
    for _ in range(2):  # sent twice, it is the same
        answer = (await admin.post("admission/pause", json={"reason": "maintenance"})).json()
        assert answer["paused"] == "maintenance"
    with pytest.raises(Exception, match="held back: maintenance"):
        await services.tenants.admission.enter(services.tenants.identify(services.key), "m", 1)
    assert (await admin.get("admission")).json()["paused"] == "maintenance"
    assert (await admin.get("status")).json()["reasons"] == ["admission is paused: maintenance"]
    for _ in range(2):
        assert (await admin.post("admission/resume")).json()["paused"] is None
    (await services.tenants.admission.enter(services.tenants.identify(services.key), "m", 1)).release()
    assert (await audited(parts))[-2:] == ["admission.pause", "admission.resume"]


async def test_logs_of_this_start_and_the_one_before(
    admin: httpx.AsyncClient, parts: AdminParts, tmp_path: Path
) -> None:
    path = tmp_path / "worker-w.log"
    path.write_text("".join(f"line {at}\n" for at in range(50)))
    parts.supervisor.shown = [worker_view(WorkerState.READY, log_path=path)]
    assert (await admin.get("logs/w?lines=2")).json()["lines"] == ["line 48", "line 49"]
    assert (await admin.get("logs/w?find=line 7")).json()["lines"] == ["line 7"]
    assert (await admin.get("logs/w?start=1")).status_code == 404
    Path(f"{path}.1").write_text("earlier\n")
    assert (await admin.get("logs/w?start=1")).json()["lines"] == ["earlier"]
    assert [(item["worker"], item["start"]) for item in (await admin.get("logs")).json()["items"]] == [
        ("w", 0),
        ("w", 1),
    ]


async def test_followed_log_goes_on_through_a_restart(
    admin: httpx.AsyncClient, parts: AdminParts, tmp_path: Path
) -> None:
    path = tmp_path / "worker-w.log"
    path.write_text("old\n")
    parts.supervisor.shown = [worker_view(WorkerState.READY, log_path=path)]
    async with admin.stream("GET", "logs/stream?worker=w") as response:
        lines = response.aiter_lines()
        await asyncio.sleep(0.1)
        with path.open("a") as file:
            file.write("one\ntwo\nhalf")
        assert [await anext(lines) for _ in range(4)] == ["data: one", "", "data: two", ""]
        path.rename(f"{path}.1")
        path.write_text("again\n")
        assert await anext(lines) == "data: again"


async def test_usage_is_exported_with_names_and_without_formulas(
    admin: httpx.AsyncClient, parts: AdminParts, services: FakeServices
) -> None:
    await services.new_key("=cmd()")
    other = await services.new_key("acme")
    for key, model in ((services.key, "a"), (other, "=b")):
        used = UsageSum(requests=1, prompt_tokens=3, cached_tokens=2, output_tokens=2, errors=1, device_s=0.5)
        parts.tenants.usage.add(services.tenants.identify(key), model, used)
    await parts.tenants.usage.settle()
    answer = await admin.get("usage/export?by=day")
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert "attachment" in answer.headers["content-disposition"]
    rows = {row["tenant"]: row for row in csv.DictReader(io.StringIO(answer.text))}
    assert set(rows) == {"acme", "demo"}
    assert rows["acme"]["model"] == "'=b"
    assert (rows["demo"]["cached_tokens"], rows["demo"]["errors"], rows["demo"]["device_s"]) == ("2", "1", "0.5")
    only = await admin.get("usage/export?format=json&tenant=acme")
    assert [item["model"] for item in only.json()["items"]] == ["=b"]
    assert (await admin.get("usage?tenant=nobody")).status_code == 404
    assert (await admin.get("usage?model=a")).json()["items"][0]["requests"] == 1


async def test_machine_is_looked_at_again_and_checked(admin: httpx.AsyncClient, parts: AdminParts) -> None:
    looks = 0
    look = parts.machine._look

    def counted() -> object:
        nonlocal looks
        looks += 1
        return look()

    parts.machine._look = counted  # type: ignore[assignment]
    first = (await admin.get("accelerators")).json()["items"]
    assert (await admin.get("accelerators")).json()["items"] == first
    assert looks == 1
    assert (await admin.post("accelerators/rescan")).json()["items"] == first
    assert looks == 2
    assert (await audited(parts))[-1] == "accelerators.rescan"
    checks = (await admin.get("doctor/checks")).json()["items"]
    assert len(checks) > 5
    assert {check["verdict"] for check in checks} <= {"ok", "info", "warning", "error"}


async def test_certificate_that_ends_soon_is_told(admin: httpx.AsyncClient, parts: AdminParts) -> None:
    parts.tls = SimpleNamespace(left_s=3 * 86_400.0, problem=None)
    answer = (await admin.get("status")).json()
    assert answer["state"] == "degraded"
    assert answer["reasons"] == ["the certificate expires in 3 days: `bayard tls rotate`, or replace the site's own"]
    parts.tls = SimpleNamespace(left_s=300 * 86_400.0, problem="x.crt cannot be used.")
    (told,) = (await admin.get("attention")).json()["items"]
    assert (told["kind"], told["severity"]) == ("certificate", "fail")
    assert "x.crt cannot be used" in told["text"]


async def test_state_folder_that_everybody_writes_is_told(admin: httpx.AsyncClient, parts: AdminParts) -> None:
    folder = parts.settings.state_dir
    folder.chmod(0o777)
    (told,) = (await admin.get("attention")).json()["items"]
    assert (told["kind"], told["severity"], told["fix"]) == ("disk", "warn", f"chmod o-rwx {folder}")
    folder.chmod(0o750)
    assert (await admin.get("attention")).json()["items"] == []
