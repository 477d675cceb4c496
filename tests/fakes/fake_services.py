"""What the APIs need of an appliance, around a fake engine and a real store; and a real HTTP server for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn

from daemon.batches.desk import BatchDesk
from daemon.batches.shelf import Shelf
from daemon.models.record import ModelRecord
from daemon.responses.archive import ResponseArchive
from daemon.router import Replica, Router
from daemon.serving.embedding import EmbeddingPath
from daemon.serving.path import ServingPath
from daemon.settings import Settings
from daemon.store.session import Store
from daemon.telemetry.metrics import Metrics
from daemon.tenants.limits import TenantLimits
from daemon.tenants.principal import Actor, Role
from daemon.tenants.service import TenantService
from daemon.workers.view import WorkerView
from tests.fakes.fake_engine import FakeEngine
from tests.fakes.fake_text import ByteText

TESTER = Actor("tester", "command")
MODEL = "org/tiny:1"


@dataclass
class FakeSupervisor:
    shown: list[WorkerView] = field(default_factory=list)

    def views(self) -> list[WorkerView]:
        return self.shown


@dataclass
class FakeServices:
    settings: Settings
    store: Store
    tenants: TenantService
    router: Router
    serving: ServingPath
    embedding: EmbeddingPath
    batches: BatchDesk
    responses: ResponseArchive
    metrics: Metrics
    supervisor: FakeSupervisor
    engine: FakeEngine
    key: str = ""
    records: dict[str, ModelRecord] = field(default_factory=dict)

    def model_record(self, name: str) -> ModelRecord | None:
        return self.records.get(name)

    async def new_key(self, tenant: str, limits: TenantLimits | None = None, role: Role = Role.INFERENCE) -> str:
        """A new tenant with one key."""
        await self.tenants.create_tenant(TESTER, tenant, limits)
        return (await self.tenants.issue_key(TESTER, tenant, role=role)).secret

    async def freed(self, within_s: float = 1.0) -> None:
        """Fails unless, soon, nothing of any request is left."""
        async with asyncio.timeout(within_s):
            while self.engine.open or len(self.serving.live) or self.tenants.admission.running:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


def add_replica(
    router: Router, model: str, engine: Any, *, text: Any = None, max_context_tokens: int = 2048, dimensions: int = 0
) -> None:
    """dimensions: of an embedding model, which then generates nothing."""
    replica = Replica(
        f"w-{model}", model, engine, text or ByteText(), max_context_tokens, "cpu", time.monotonic(),
        generates=not dimensions, embeds=bool(dimensions), embedding_dimensions=dimensions,
    )  # fmt: skip
    router._replicas.setdefault(model, []).append(replica)


@asynccontextmanager
async def fake_services(folder: Path, key: str | None = None, **limits: int) -> AsyncIterator[FakeServices]:
    """One model, one tenant `demo` with a key, an engine that answers at once. key: what an earlier use had made."""
    settings = Settings(
        state_dir=folder,
        run_dir=folder,
        admin_socket=folder / "a.sock",
        limits=limits,  # type: ignore[arg-type]  # pydantic makes the section of it
    )
    store = await asyncio.to_thread(Store.open, settings)
    metrics = Metrics()
    router = Router(lambda path: ByteText())  # type: ignore[arg-type, return-value]
    tenants = TenantService(store, settings.limits.max_queue)
    await tenants.start()
    serving = ServingPath(tenants, router, metrics, max_choices=settings.limits.max_choices)
    embedding = EmbeddingPath(tenants, router, serving.live, serving.settlement)
    engine = FakeEngine()
    add_replica(router, MODEL, engine)
    batches = BatchDesk(store, Shelf(settings.files_dir), settings.batches)
    responses = ResponseArchive(store, settings.limits.stored_response_days)
    services = FakeServices(
        settings, store, tenants, router, serving, embedding, batches, responses, metrics, FakeSupervisor(), engine
    )
    services.key = key or await services.new_key("demo")
    try:
        yield services
    finally:
        serving.close()
        await tenants.stop()
        await asyncio.to_thread(store.close)


@asynccontextmanager
async def http_server(app: Any, **options: Any) -> AsyncIterator[str]:
    """Serve on a free port of loopback; yields the base URL."""
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning", access_log=False, **options)
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    task = asyncio.create_task(server._serve())
    while not server.started:
        await asyncio.sleep(0.005)
        if task.done():
            task.result()
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        server.force_exit = True
        await task
