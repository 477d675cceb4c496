"""Attention, accelerators, doctor, overrides, settings, restores and the end of tenants, over the admin socket."""

from __future__ import annotations

import asyncio
import tarfile
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import msgspec
import psutil
import pytest

from daemon.api.admin import faults
from daemon.app import Appliance
from daemon.planning.install import EngineInstall
from daemon.planning.machine_budgets import budgets_of
from daemon.planning.plan import Planner, Request
from daemon.planning.profile import Profile
from daemon.planning.strategy import Strategy
from daemon.reload import reload_in_thread
from daemon.settings import Settings
from daemon.settings_load import load_settings
from daemon.store.backup import create
from daemon.store.base import utc_now
from daemon.store.marks import MarkKind, Marks
from daemon.store.pending_restore import FAILED, ask, pending
from daemon.strategy.plans import OPERATOR, SavedPlan
from daemon.tenants import audit
from daemon.tenants.limits import TenantLimits
from daemon.workers.states import WorkerState
from engine.errors import ConfigError, StoreError
from hwdetect.accelerator import Accelerator, State, Vendor
from hwdetect.detect import detect
from tests.fakes.fake_admin import AdminParts, admin_socket, worker_view
from tests.fakes.fake_services import TESTER, FakeServices, fake_services
from tests.fakes.planned_models import cpu_machine, made_spec


@pytest.fixture
async def services(short_dir: Path) -> AsyncIterator[FakeServices]:
    async with fake_services(short_dir) as made:
        yield made


@pytest.fixture
async def served(services: FakeServices, short_dir: Path) -> AsyncIterator[tuple[AdminParts, httpx.AsyncClient]]:
    async with admin_socket(services, short_dir / "admin.sock") as made:
        device = Accelerator(
            vendor=Vendor.NVIDIA, index=0, name="H200", state=State.USABLE, memory_used_bytes=5, temperature_c=61.0
        )
        machine = replace(detect(Path("/")), accelerators=(device,))
        made[0].machine._look = lambda: machine
        yield made


@pytest.fixture
def admin(served: tuple[AdminParts, httpx.AsyncClient]) -> httpx.AsyncClient:
    return served[1]


@pytest.fixture
def parts(served: tuple[AdminParts, httpx.AsyncClient]) -> AdminParts:
    return served[0]


async def newest_audit(parts: AdminParts) -> Any:
    return (await parts.store.read(lambda session: audit.page(session, limit=1)))[0]


async def ended(admin: httpx.AsyncClient, path: str) -> dict[str, Any]:
    async with asyncio.timeout(20):
        while True:
            item: dict[str, Any] = (await admin.get(path)).json()["item"]
            if item["ended_at"]:
                return item
            await asyncio.sleep(0.02)


async def test_attention_lists_faults_with_their_fix_until_they_are_gone(
    admin: httpx.AsyncClient, parts: AdminParts, services: FakeServices
) -> None:
    assert (await admin.get("attention")).json()["items"] == []
    parts.supervisor.shown = [worker_view(WorkerState.LATCHED, reason="3 fast exits in a row")]
    parts.tls = SimpleNamespace(left_s=86_400.0, problem=None)
    await services.tenants.create_tenant(TESTER, "a/b".replace("/", " "), TenantLimits(tokens_per_day=100))
    tenant = await services.tenants.tenant("a b")
    services.tenants.admission.quotas_of(tenant.id).day.window(services.tenants.admission.now()).used = 95
    items = (await admin.get("attention")).json()["items"]
    assert [(item["id"], item["severity"]) for item in items] == [
        ("worker.w", "fail"), ("certificate.server", "warn"), ("tenant.a-b-day", "warn"),
    ]  # fmt: skip
    assert all(item["fix"] for item in items)
    assert "95 of its 100 tokens of the day" in items[2]["text"]
    for _ in range(2):  # sent twice, it is the same
        seen = (await admin.post("attention/worker.w/ack")).json()["item"]
    assert seen["acknowledged_by"]
    assert seen["since"] == items[0]["since"]
    assert (await newest_audit(parts)).action == "attention.ack"
    parts.supervisor.shown = []
    assert "worker.w" not in [item["id"] for item in (await admin.get("attention")).json()["items"]]
    parts.supervisor.shown = [worker_view(WorkerState.LATCHED)]
    again = (await admin.get("attention")).json()["items"][0]
    assert again["acknowledged_by"] is None, "what comes again is a new fault"
    assert (await admin.post("attention/worker.x/ack")).status_code == 404


async def test_files_that_run_out_are_told_before_they_do(
    admin: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "open_files_limit", lambda: psutil.Process().num_fds())
    (item,) = (await admin.get("attention")).json()["items"]
    assert item["id"] == "files.open"
    assert "LimitNOFILE" in item["fix"]


async def test_accelerator_shows_details_history_and_is_drained(admin: httpx.AsyncClient, parts: AdminParts) -> None:
    view = worker_view(WorkerState.READY)
    parts.supervisor.shown = [replace(view, config=msgspec.structs.replace(view.config, device="cuda:0"))]
    found = (await admin.get("accelerators/nvidia0")).json()
    assert found["item"]["workers"] == ["w"]
    assert found["details"]["temperature_c"] == 61.0
    samples = (await admin.get("accelerators/nvidia0/history")).json()["items"]
    assert [(one["temperature_c"], one["memory_used_bytes"]) for one in samples] == [(61.0, 5)]
    told = (await admin.post("accelerators/nvidia0/drain?dry_run=true")).json()
    assert told["in_flight"] == 3
    assert parts.supervisor.drained == {}
    drained = (await admin.post("accelerators/nvidia0/drain")).json()["item"]
    assert "is drained by" in drained["drained"]
    marks = Marks(parts.store)
    assert "is drained by" in marks.all(MarkKind.DRAINED)["cuda:0"].reason, "it outlives the daemon"
    assert (await newest_audit(parts)).action == "accelerator.drain"
    assert (await admin.post("accelerators/nvidia0/undrain")).json()["item"]["drained"] is None
    assert not marks.all(MarkKind.DRAINED)
    assert (await admin.get("accelerators/nvidia7")).status_code == 404


async def test_doctor_runs_as_an_operation_and_writes_a_bundle(admin: httpx.AsyncClient, parts: AdminParts) -> None:
    started = (await admin.post("doctor/runs", json={"only": ["memory"]})).json()["item"]
    done = await ended(admin, f"doctor/runs/{started['id']}")
    assert done["state"] == "done"
    assert {item["id"].split(".")[0] for item in done["result"]["items"]} == {"memory"}
    wrong = (await admin.post("doctor/runs", json={"only": ["memroy"]})).json()["item"]
    assert (await ended(admin, f"doctor/runs/{wrong['id']}"))["error"]["code"] == "invalid_parameter"
    bundle = (await admin.post("doctor/bundles")).json()["item"]
    assert (await admin.get(f"doctor/runs/{bundle['id']}")).status_code == 404
    done = await ended(admin, f"operations/{bundle['id']}")
    with tarfile.open(done["result"]["path"]) as archive:
        names = {name.rpartition("/")[2] for name in archive.getnames()}
    assert {"machine.json", "doctor.json", "settings.json", "state.json"} <= names
    assert (await admin.get("imports")).json()["items"] == []
    assert (await admin.get(f"imports/{bundle['id']}")).status_code == 404


def profile() -> Profile:
    spec = made_spec("small", hidden=256, layers=2, heads=4, kv_heads=2, mlp=512, vocab=1000, kind="F32")
    planner = Planner(budgets_of(cpu_machine(8), EngineInstall.full()))
    chosen = planner.answer(spec, Request(Strategy.LATENCY, context_tokens=4096, kv_tokens=32_768)).chosen
    assert chosen is not None
    return chosen


async def wanted(*_: object, **__: object) -> None:
    """A worker of these plans: none is started."""


async def test_schedule_is_overridden_held_previewed_and_changed(admin: httpx.AsyncClient, parts: AdminParts) -> None:
    assert (await admin.post("schedule/hold")).json()["code"] == "conflict"
    parts.supervisor.want = wanted  # type: ignore[method-assign]
    for name in ("day", "night"):
        plan = SavedPlan(name, Strategy.LATENCY, OPERATOR, (profile(),), "", utc_now(), utc_now())
        await asyncio.to_thread(parts.plans.save, plan, "a test")
    await asyncio.to_thread(parts.plans.set_default, "night", "test")
    rule = {"name": "office", "cron": "0 8 * * *", "duration_s": 36_000, "plan": "day", "timezone": "UTC"}
    told = (await admin.post("schedule/preview", json={"rule": rule, "day": "2026-11-30"})).json()
    assert [span["plan"] for span in told["before"]] == ["night"]
    assert [span["plan"] for span in told["after"]] == ["night", "day", "night"]
    assert told["problem"] is None
    assert (await admin.get("schedule/rules")).json()["items"] == []
    assert (await admin.post("schedule/rules", json=rule)).status_code == 201
    clash = rule | {"name": "other", "plan": "night"}
    assert "at the same time" in (await admin.post("schedule/preview", json={"rule": clash})).json()["problem"]
    changed = (await admin.patch("schedule/rules/office", json={"duration_s": 7_200, "enabled": False})).json()["item"]
    assert (changed["duration_s"], changed["enabled"], changed["cron"]) == (7_200, False, "0 8 * * *")
    entry = await newest_audit(parts)
    assert (entry.before["duration_s"], entry.after["duration_s"]) == (36_000, 7_200)
    free = {"except_dates": ["2026-12-25", "2026-11-30"]}
    told = (await admin.post("schedule/preview", json={"rule": rule | free, "day": "2026-11-30"})).json()
    assert [span["plan"] for span in told["after"]] == ["night"]
    changed = (await admin.patch("schedule/rules/office", json=free)).json()["item"]
    assert changed["except_dates"] == ["2026-11-30", "2026-12-25"]
    assert (await newest_audit(parts)).after == free
    assert (await admin.patch("schedule/rules/office", json={"duration_s": 5})).status_code == 400
    assert (await admin.get("schedule/rules/office")).json()["item"] == changed
    assert (await admin.post("schedule/hold?dry_run=true")).json()["consequences"][0] == "plan night stays"
    assert (await admin.get("schedule/overrides")).json()["items"] == []
    assert (await admin.post("schedule/hold", json={"reason": "inventory"})).json()["plan"] == "night"
    (item,) = (await admin.get("schedule/overrides")).json()["items"]
    assert (item["reason"], item["ends_at"]) == ("held: inventory", None)
    made = await admin.post("schedule/overrides", json={"plan": "day", "for_s": 600})
    assert made.json()["item"]["ends_at"] is not None
    assert (await newest_audit(parts)).before["override"] == "night"
    assert (await admin.delete("schedule/overrides/current")).json()["plan"] == "night"
    entry = await newest_audit(parts)
    assert (entry.before["plan"], entry.after["plan"]) == ("day", "night")
    assert (await admin.get("schedule/overrides/current")).status_code == 404


async def test_tenant_is_renamed_and_deleted_only_when_suspended(
    admin: httpx.AsyncClient, parts: AdminParts, services: FakeServices
) -> None:
    key = await services.new_key("acme")
    assert (await admin.patch("tenants/acme", json={"name": "demo"})).json()["code"] == "conflict"
    assert (await admin.patch("tenants/acme", json={"name": "Acme Ltd", "priority": 3})).json()["item"]["priority"] == 3
    assert services.tenants.authenticate(key).tenant_name == "Acme Ltd"
    assert (await admin.delete("tenants/Acme Ltd")).json()["code"] == "conflict"
    await admin.post("tenants/Acme Ltd/suspend")
    assert (await admin.delete("tenants/Acme Ltd?dry_run=true")).json()["dry_run"] is True
    assert (await admin.delete("tenants/Acme Ltd")).json() | {"as_of": None} == {"deleted": "Acme Ltd", "as_of": None}
    assert (await newest_audit(parts)).action == "tenant.delete"
    with pytest.raises(Exception, match="not known"):
        services.tenants.authenticate(key)
    assert (await admin.get("tenants/Acme Ltd")).status_code == 404


async def test_settings_change_at_once_or_at_the_next_start(
    admin: httpx.AsyncClient, parts: AdminParts, short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts.settings = load_settings(None, {}, {"state_dir": short_dir, "grpc.port": 0})
    monkeypatch.setattr(type(parts), "reload", lambda self: reload_in_thread(self), raising=False)
    told = (await admin.patch("settings?dry_run=true", json={"values": {"limits.max_queue": 99}})).json()
    assert told["consequences"] == ["limits.max_queue: 256 -> 99, at once"]
    values = {"limits.max_queue": 99, "http.port": 9090}
    done = (await admin.patch("settings", json={"values": values})).json()
    assert (done["applied"], done["needs_restart"]) == (["limits.max_queue"], ["http.port"])
    entry = await newest_audit(parts)
    assert entry.before["limits.max_queue"] == 256
    assert parts.tenants.admission.max_queue == 99
    shown = {item["key"]: item for item in (await admin.get("settings")).json()["items"]}
    assert (shown["limits.max_queue"]["value"], shown["limits.max_queue"]["source"]) == (99, "admin")
    assert (shown["http.port"]["value"], shown["http.port"]["pending"]) == (8080, 9090)
    assert shown["grpc.port"]["locked"]
    assert not shown["http.port"]["locked"]
    assert load_settings(None, {}, {"state_dir": short_dir}).http.port == 9090
    assert load_settings(None, {"BAYARD_HTTP_PORT": "7"}, {"state_dir": short_dir}).http.port == 7
    for wrong, code in (
        ({"limits.max_queue": 0}, "invalid_parameter"), ({"limits.none": 1}, "invalid_parameter"),
        ({"grpc.port": 5}, "conflict"), ({"workers.command": "/bin/sh"}, "conflict"),
        ({"state_dir": "/tmp"}, "conflict"),
    ):  # fmt: skip
        assert (await admin.patch("settings", json={"values": wrong})).json()["code"] == code, wrong
    never = (await admin.patch("settings", json={"values": {"database_url": "sqlite://"}})).json()
    assert "never sets it" in never["message"]
    done = (await admin.patch("settings", json={"values": {"limits.max_queue": None, "http.port": None}})).json()
    assert done["applied"] == ["limits.max_queue"]
    assert parts.tenants.admission.max_queue == 256
    (short_dir / "settings.json").write_text("[")
    with pytest.raises(ConfigError, match=r"settings\.json cannot be read"):
        load_settings(None, {}, {"state_dir": short_dir})


async def test_restore_is_noted_and_can_be_withdrawn(admin: httpx.AsyncClient, parts: AdminParts) -> None:
    facts = await asyncio.to_thread(create, parts.settings)
    path = f"backups/{facts.path.name}/restore"
    assert (await admin.post("backups/none/restore")).status_code == 404
    assert (await admin.post(path + "?dry_run=true")).json()["dry_run"] is True
    assert pending(parts.settings) is None
    assert (await admin.post(path)).status_code == 202
    assert (await newest_audit(parts)).action == "backup.restore-asked"
    assert (await admin.get("backups")).json()["pending_restore"]["file"] == str(facts.path)
    assert (await admin.delete("backups/restore")).json()["withdrawn"] == str(facts.path)
    assert (await admin.get("backups")).json()["pending_restore"] is None


@pytest.fixture
def stopped(short_dir: Path) -> Settings:
    return load_settings(None, {}, {"state_dir": short_dir, "http.port": 0, "grpc.port": 0})


async def test_next_start_restores_what_was_asked_for_and_says_so(stopped: Settings) -> None:
    async def names_after_start(make: str = "") -> list[str]:
        appliance = Appliance(stopped)
        await appliance.start()
        try:
            if make:
                await appliance.tenants.create_tenant(TESTER, make)
            return [event.to_state for event in appliance.events.recent() if event.subject == "bayard"] + [
                tenant.name for tenant in await appliance.tenants.tenants()
            ]
        finally:
            await appliance.stop()

    await names_after_start("first")
    facts = create(stopped)
    await names_after_start("second")
    ask(stopped, facts.path, "ops")
    found = await names_after_start()
    assert "restore" in found
    assert "first" in found
    assert "second" not in found
    assert pending(stopped) is None
    ask(stopped, facts.path, "ops")
    facts.path.write_bytes(b"broken since")
    found = await names_after_start()
    assert "restore-failed" in found
    assert "first" in found
    assert (stopped.state_dir / FAILED).exists()
    with pytest.raises(StoreError):
        ask(stopped, facts.path, "ops")
    (stopped.state_dir / "restore-pending.json").write_text("[]")
    assert "restore-failed" in await names_after_start()
    assert not (stopped.state_dir / "restore-pending.json").exists()


async def test_long_lists_come_in_pages(admin: httpx.AsyncClient, services: FakeServices) -> None:
    for at in range(5):
        await services.tenants.create_tenant(TESTER, f"t{at}")
        await services.tenants.issue_key(TESTER, "t0")
    for path in ("tenants", "keys", "tenants/t0/keys"):
        whole = (await admin.get(path)).json()
        assert whole["next"] is None
        found: list[str] = []
        after = ""
        while after is not None:
            answer = (await admin.get(f"{path}?limit=2{after and '&after='}{after}")).json()
            assert 1 <= len(answer["items"]) <= 2
            found += [item["id"] for item in answer["items"]]
            after = answer["next"]
        assert found == [item["id"] for item in whole["items"]]
        assert (await admin.get(f"{path}?after=gone")).json()["param"] == "after"
        assert (await admin.get(f"{path}?limit=501")).status_code == 400
