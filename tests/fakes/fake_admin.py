"""The services that the admin API needs, real around a real store, but for the workers; and its socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import msgspec

from daemon.api.admin import PeerProtocol, build_admin_app
from daemon.events import EventLog
from daemon.listeners import listen_unix
from daemon.machine_watch import MachineWatch
from daemon.models.aliases import Aliases
from daemon.models.operations import Operations
from daemon.models.registry import ModelRegistry
from daemon.servers import HttpServer
from daemon.store.base import utc_now
from daemon.strategy.controller import PlanController
from daemon.strategy.plans import Plans
from daemon.strategy.rules import Rules
from daemon.workers.states import WorkerState
from daemon.workers.view import WorkerView
from engine.errors import NotFound
from engine.messages import Knobs, LoadProgress, WorkerConfig, WorkerReady, WorkerStats
from tests.fakes.fake_services import FakeServices


@dataclass
class ShownWorkers:
    """A supervisor that shows what a test set, and keeps what it was asked."""

    shown: list[WorkerView] = field(default_factory=list)
    restarted: list[tuple[str, str]] = field(default_factory=list)
    calls: list[tuple[str, str, float | None]] = field(default_factory=list)

    drained: dict[str, str] = field(default_factory=dict)

    def views(self) -> list[WorkerView]:
        return self.shown

    async def drain_device(self, device: str, reason: str) -> list[str]:
        self.drained[device] = reason
        return [view.name for view in self.shown if view.config.device == device]

    async def undrain_device(self, device: str) -> list[str]:
        self.drained.pop(device, None)
        return [view.name for view in self.shown if view.config.device == device]

    def view(self, name: str) -> WorkerView:
        for view in self.shown:
            if view.name == name:
                return view
        raise NotFound(f"there is no worker {name!r}.")

    def sickly(self) -> list[str]:
        return [f"worker {view.name} is {view.state}" for view in self.shown if view.state is WorkerState.LATCHED]

    async def restart(self, name: str, drain_s: float | None = None, reason: str = "") -> None:
        self.restarted.append((self.view(name).name, reason))

    async def sleep(self, name: str, drain_s: float | None = None, reason: str = "") -> None:
        self.calls.append(("sleep", self.view(name).name, drain_s))

    async def wake(self, name: str, reason: str = "") -> None:
        self.calls.append(("wake", self.view(name).name, None))

    async def kill(self, name: str) -> None:
        self.calls.append(("kill", self.view(name).name, None))

    async def want(self, name: str, config: WorkerConfig) -> None:
        raise AssertionError("no plan of these tests loads a model")

    async def unwant(self, name: str, drain_s: float | None = None, reason: str = "") -> None:
        raise AssertionError("no worker of these tests is wanted")

    async def set_knobs(self, name: str, knobs: Knobs) -> None:
        raise AssertionError("no worker of these tests is wanted")


def worker_view(state: WorkerState, **changes: Any) -> WorkerView:
    """A worker as it looks while serving; changes say how this one differs."""
    values: dict[str, Any] = {
        "name": "w",
        "model": "m",
        "state": state,
        "since_at": utc_now(),
        "reason": "",
        "config": WorkerConfig("w", "m", "/nowhere", "ipc:///nowhere"),
        "pid": 7,
        "ready": WorkerReady(1, 7, "m", "cpu", 2048, 100, 16, 1.5, kernels={"gemm": "reference"}),
        "progress": LoadProgress("warming", 10, 10),
        "stats": WorkerStats(running=2, waiting=1, kv_pages_total=100, kv_pages_active=5, rss_bytes=1 << 20),
        "step_age_s": 0.1,
        "inflight": 3,
        "restarts": 0,
        "restarts_24h": 0,
        "last_exit": None,
        "last_log_lines": (),
        "retry_in_s": None,
        "log_path": Path("/nowhere/w.log"),
    }
    return WorkerView(**(values | changes))


@dataclass
class AdminParts:
    """Everything build_admin_app reads, under the appliance's names."""

    settings: Any
    store: Any
    tenants: Any
    router: Any
    serving: Any
    metrics: Any
    events: EventLog
    supervisor: ShownWorkers
    models: ModelRegistry
    operations: Operations
    plans: Plans
    rules: Rules
    controller: PlanController
    machine: MachineWatch
    aliases: Aliases
    desk: Any = None
    tls: Any = None
    started_at: datetime = field(default_factory=utc_now)
    http_address: str | None = "http://127.0.0.1:8080"
    grpc_address: str | None = None
    admin_tls_address: str | None = None


@asynccontextmanager
async def admin_socket(services: FakeServices, path: Path) -> AsyncIterator[tuple[AdminParts, httpx.AsyncClient]]:
    """The parts, and a client on their socket, with this test's own uid as its peer."""
    events = await asyncio.to_thread(EventLog, services.store)
    supervisor = ShownWorkers()
    plans, rules = Plans(services.store, events), Rules(services.store, events, services.settings)
    controller = PlanController(plans, rules, supervisor, events)
    operations = Operations()
    models = ModelRegistry(services.store, services.settings, events)
    parts = AdminParts(
        services.settings, services.store, services.tenants, services.router, services.serving, services.metrics,
        events, supervisor, models, operations, plans, rules, controller,
        MachineWatch(services.settings.state_dir, events), Aliases(services.store, events),
    )  # fmt: skip
    server = HttpServer("admin", build_admin_app(parts), listen_unix(path), PeerProtocol)  # type: ignore[arg-type]
    await server.start()
    transport = httpx.AsyncHTTPTransport(uds=str(path))
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://bayard/admin/v1/", timeout=10) as client:
            yield parts, client
    finally:
        events.close()
        await server.stop()
        operations.close()


def knobs_of(item: dict[str, Any]) -> Knobs:
    return msgspec.convert(item["knobs"], Knobs)
