"""Appliance: builds every part of the daemon, starts them in order and stops them in reverse. Where parts meet."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING

import structlog

from daemon import __version__
from daemon.draining import drain
from daemon.events import EventLog
from daemon.machine_watch import MachineWatch
from daemon.notify import keep_manager_informed, notify
from daemon.opening import open_servers
from daemon.reload import Reloaded, reload_in_thread, reload_logged
from daemon.router import Router, TextLoader, load_text_of
from daemon.servers import Grpc, HttpServer
from daemon.settings import Settings
from daemon.store.base import utc_now
from daemon.store.lock import DAEMON_WAIT_S, StateLock
from daemon.store.pending_restore import do_pending, tell_restored
from daemon.store.retention import forgetting
from daemon.store.session import Store
from daemon.telemetry.metrics import Metrics
from daemon.upkeep import Upkeep
from daemon.workers.process import Spawner
from daemon.workers.states import WorkerState
from daemon.workers.supervisor import Supervisor
from engine.errors import BayardError, ModelNotFound

if TYPE_CHECKING:
    from daemon.api.connections import Connections
    from daemon.batches.desk import BatchDesk
    from daemon.batches.runner import BatchRunner
    from daemon.models.aliases import Aliases
    from daemon.models.operations import Operations
    from daemon.models.record import ModelRecord
    from daemon.models.registry import ModelRegistry
    from daemon.responses.archive import ResponseArchive
    from daemon.serving.embedding import EmbeddingPath
    from daemon.serving.path import ServingPath
    from daemon.strategy.controller import PlanController
    from daemon.strategy.desk import PlanningDesk
    from daemon.strategy.plans import Plans
    from daemon.strategy.rules import Rules
    from daemon.tenants.service import TenantService
    from daemon.tls.server_tls import ServerTls

STOP_MARGIN_S = 15.0  # beyond the grace: workers ended the hard way, usage settled, sockets closed

log = structlog.get_logger("bayard")


class ApplianceState(StrEnum):
    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"
    STOPPED = "stopped"


class Appliance:
    """The running daemon. Made in the main thread before the event loop; everything else happens on the loop.

    Blocks: for the migrations, when made.
    Raises: ConfigError, MigrationFailed; nothing is left behind then.
    """

    def __init__(
        self, settings: Settings, *, worker_env: dict[str, str] | None = None, load_text: TextLoader | None = None
    ) -> None:
        self.settings = settings
        self.version = __version__
        self.state = ApplianceState.STARTING
        self.started_at: datetime = utc_now()
        self.ready_at: datetime | None = None
        self.http: HttpServer | None = None
        self.admin: HttpServer | None = None
        self.grpc: Grpc | None = None
        self.admin_tls: HttpServer | None = None
        self.tls: ServerTls | None = None
        self.connections: Connections | None = None
        # Kernels are compiled once on a machine, not at each start; a home folder may not be there to write to.
        self._worker_env = {"TRITON_CACHE_DIR": str(settings.kernels_dir), **(worker_env or {})}
        self._load_text = load_text or load_text_of
        self._stops: list[tuple[str, Callable[[], Awaitable[None] | None]]] = []
        self._stop_asked = asyncio.Event()
        self._hurry = asyncio.Event()
        try:
            self._lock = StateLock.acquire(settings.state_dir, DAEMON_WAIT_S, settings.admin_socket)
            self._stops.append(("lock", self._lock.release))
            self._spawner = Spawner()
            self._stops.append(("spawner", self._spawner.close))
            restored = do_pending(settings)
            self.store = Store.open(settings)
            self._stops.append(("store", self.store.close))
            self.events = EventLog(self.store)
            if restored is not None:
                tell_restored(self.store, self.events, restored)
            self._stops.append(("events", self.events.close))
        except BaseException:
            self.abandon()
            raise

    # parts that need the event loop; set by start()
    metrics: Metrics
    router: Router
    supervisor: Supervisor
    models: ModelRegistry
    aliases: Aliases
    operations: Operations
    plans: Plans
    rules: Rules
    desk: PlanningDesk
    tenants: TenantService
    serving: ServingPath
    embedding: EmbeddingPath
    batches: BatchDesk
    runner: BatchRunner
    responses: ResponseArchive
    controller: PlanController

    async def start(self) -> None:
        """Build and start every part in order; on failure stop what was started.

        Raises: ConfigError and whatever a part raises.
        """
        started_mono = time.monotonic()
        try:
            self._build()
            await open_servers(self)
        except BaseException:
            await self._stop_parts()
            raise
        self.state = ApplianceState.SERVING
        self.ready_at = utc_now()
        self.metrics.ready_mono = time.monotonic()
        self.events.publish("appliance", "bayard", "starting", "serving", f"version {self.version}")
        log.info(
            "ready",
            version=self.version,
            http=self.http_address,
            grpc=self.grpc_address,
            admin=str(self.settings.admin_socket),
            start_s=round(time.monotonic() - started_mono, 3),
        )
        notify("READY=1", f"STATUS={self.status_line()}")

    async def run(self) -> None:
        """Start, serve until a signal, stop. The first SIGTERM or SIGINT drains; the second waits for nothing."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.ask_stop, signal.Signals(number).name)
        loop.add_signal_handler(signal.SIGHUP, reload_logged, self)
        await self.start()
        informing = asyncio.create_task(keep_manager_informed(self.status_line, self._alive), name="notify")
        try:
            await self._until_stop_or_broken(
                [informing, *(server.task for server in (self.http, self.admin) if server)]
            )
        finally:
            grace_s = self.settings.workers.stop_grace_s
            notify("STOPPING=1", f"EXTEND_TIMEOUT_USEC={int((grace_s + STOP_MARGIN_S) * 1e6)}")
            await self.stop()
            informing.cancel()
            await asyncio.gather(informing, return_exceptions=True)

    async def _until_stop_or_broken(self, vital: list[asyncio.Task[None]]) -> None:
        """Raises: BayardError if a task ends that nothing may end: better a restart than half a service."""
        stop = asyncio.create_task(self._stop_asked.wait(), name="until stop")
        try:
            await asyncio.wait({stop, *vital}, return_when=asyncio.FIRST_COMPLETED)
            for task in vital:
                if task.done() and not stop.done():
                    reason = "it was cancelled" if task.cancelled() else task.exception() or "it returned"
                    raise BayardError(
                        f"the task {task.get_name()!r} ended: {reason}.", "The service restarts; see the log."
                    )
        finally:
            stop.cancel()

    async def reload(self) -> Reloaded:
        """Read the settings again. Raises: ConfigError"""
        return await reload_in_thread(self)

    def ask_stop(self, cause: str) -> None:
        if self._stop_asked.is_set():
            log.warning("stop_hurried", cause=cause)
            self._hurry.set()
            if hasattr(self, "supervisor"):
                self.supervisor.hurry()
            return
        self._stop_asked.set()
        log.info("stop_asked", cause=cause, grace_s=self.settings.workers.stop_grace_s)

    async def stop(self) -> None:
        """Refuse new requests, let running ones finish for stop_grace_s, then stop every part. Once only."""
        if self.state is ApplianceState.STOPPED:
            return
        before, self.state = self.state, ApplianceState.DRAINING
        cut = None
        try:
            self.events.publish("appliance", "bayard", before, self.state, "stop asked")
            cut = await drain(self, self._hurry)
            self.events.publish("appliance", "bayard", self.state, ApplianceState.STOPPED, "drained", cut_requests=cut)
        finally:  # whatever draining met, no part is left running
            self.state = ApplianceState.STOPPED
            self.events.close()  # live readers end now, or the servers would wait for them
            await self._stop_parts()
        log.info("stopped", cut_requests=cut)

    def abandon(self) -> None:
        """Free what the constructor took, where the event loop never ran."""
        for _, stop in reversed(self._stops):
            stop()
        self._stops.clear()

    def model_record(self, name: str) -> ModelRecord | None:
        """What is known of an imported model; None for a name that none has. Blocks."""
        try:
            return self.models.get(name)
        except ModelNotFound:
            return None

    @property
    def draining(self) -> bool:
        return self.state in (ApplianceState.DRAINING, ApplianceState.STOPPED)

    @property
    def http_address(self) -> str | None:
        scheme = "https" if self.settings.tls.enabled else "http"
        return f"{scheme}://{_host(self.settings.http.host)}:{self.http.port}" if self.http else None

    @property
    def admin_tls_address(self) -> str | None:
        return f"https://{_host(self.settings.tls.admin_host)}:{self.admin_tls.port}" if self.admin_tls else None

    @property
    def grpc_address(self) -> str | None:
        return f"{_host(self.settings.grpc.host)}:{self.grpc.port}" if self.grpc else None

    def status_line(self) -> str:
        """One line for systemd and for people."""
        if self.draining:
            return f"draining, {len(self.serving.live)} requests to finish"
        sick = self.supervisor.sickly()
        if sick:
            return "; ".join(sick)
        loading = [view.model for view in self.supervisor.views() if view.state is not WorkerState.READY]
        served = ", ".join(self.router.models())
        if loading:
            return f"loading {', '.join(loading)}" + (f"; serving {served}" if served else "")
        return (
            f"serving {served} on {self.http_address}"
            if served
            else f"no model loaded; listening on {self.http_address}"
        )

    def _build(self) -> None:
        from daemon.batches.desk import BatchDesk
        from daemon.batches.shelf import Shelf
        from daemon.models.operations import Operations
        from daemon.responses.archive import ResponseArchive
        from daemon.serving.embedding import EmbeddingPath
        from daemon.serving.path import ServingPath
        from daemon.strategy.controller import PlanController
        from daemon.strategy.first_calibration import FirstCalibration
        from daemon.strategy.parts import build_parts
        from daemon.tenants.service import TenantService

        settings = self.settings
        self.metrics = Metrics()
        self.router = Router(self._load_text)
        self.supervisor = Supervisor(
            settings, self._spawner, self.store, self.events, self.router, env=self._worker_env
        )
        parts = build_parts(self.store, settings, self.events, self.supervisor.views)
        self.models, self.plans, self.rules, self.desk = parts.models, parts.plans, parts.rules, parts.desk
        self.operations = Operations()
        self.tenants = TenantService(self.store, settings.limits.max_queue, self._engine_waiting)
        limits = settings.limits
        self.serving = ServingPath(
            self.tenants, self.router, self.metrics,
            max_choices=limits.max_choices, retry_within_s=limits.retry_within_s, model_wait_s=limits.model_wait_s,
        )  # fmt: skip
        self.embedding = EmbeddingPath(
            self.tenants, self.router, self.serving.live, self.serving.settlement, model_wait_s=limits.model_wait_s
        )
        self.responses = ResponseArchive(self.store, settings.limits.stored_response_days)
        self.batches = BatchDesk(self.store, Shelf(settings.files_dir), settings.batches)
        self.controller = PlanController(self.plans, self.rules, self.supervisor, self.events, room=parts.room.beside)
        self.controller.after_turn = self.desk.note_loaded
        self.machine = MachineWatch(settings.state_dir, self.events)
        first = FirstCalibration(self.desk, self.operations, self.supervisor.views, settings.workers.calibrate_after_s)
        self.upkeep = Upkeep(
            self.events, self.models.names, self.machine, parts.aliases.all, forgetting(self.store, settings),
            {"calibrate once idle": first.follow},
        )  # fmt: skip
        self.router.imported = self.upkeep.imported
        self.router.aliases = self.upkeep.aliases
        self.tenants.admission.resolve = lambda model: self.upkeep.aliases().get(model, model)
        self.aliases = parts.aliases
        self.router.views = self.supervisor.views
        self.router.ask = self.controller.on_demand.ask
        self.router.resting = self.controller.expected.is_unwanted
        self.router.coming = self.controller.expected.coming
        self.router.offers = lambda: self.controller.expected.offers
        self.metrics.views = self.supervisor.views
        self.metrics.accelerators = lambda: self.machine.last.accelerators if self.machine.last else ()
        self.metrics.refused_guesses = lambda: self.tenants.brake.refusals
        self.metrics.certificate_left_s = lambda: self.tls.left_s if self.tls is not None else None
        self.metrics.admission_waiting = lambda: self.tenants.admission.waiting
        self.metrics.event_failures = lambda: self.events.unwritten_failures
        self.metrics.connections = lambda: self.connections

    def at_stop(self, name: str, stop: Callable[[], Awaitable[None] | None]) -> None:
        """The last that was added is stopped first."""
        self._stops.append((name, stop))

    async def start_part(
        self, name: str, start: Callable[[], Awaitable[None]], stop: Callable[[], Awaitable[None]]
    ) -> None:
        self._stops.append((name, stop))
        await start()

    async def _stop_parts(self) -> None:
        """Each part is stopped though another's stop fails; a failure is logged and does not hide the first cause."""
        while self._stops:
            name, stop = self._stops.pop()
            try:
                result = stop()
                if result is not None:
                    await result
            except (Exception, asyncio.CancelledError):  # the border of one part's end: the others come to theirs
                log.exception("stop_failed", part=name)

    def _engine_waiting(self) -> int:
        return sum(view.stats.waiting for view in self.supervisor.views() if view.stats is not None)

    def _alive(self) -> bool:
        return self.http is not None and self.http.alive and self.admin is not None and self.admin.alive


def _host(host: str) -> str:
    return f"[{host}]" if ":" in host else host
