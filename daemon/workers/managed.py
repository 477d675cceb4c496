"""ManagedWorker: one wanted worker, kept running through as many processes as it takes."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from datetime import datetime

import msgspec
import structlog

from daemon.events import EventLog
from daemon.settings import WorkerSettings
from daemon.store.base import utc_now
from daemon.workers.backoff import Backoff, Restarts
from daemon.workers.device_memory import DeviceMemory
from daemon.workers.doze import Asked, doze, same_but_knobs
from daemon.workers.history import History
from daemon.workers.incarnation import Incarnation, Launch, log_path
from daemon.workers.proof import prove
from daemon.workers.states import WorkerState, may_become
from daemon.workers.traffic import Traffic, error_for_streams, open_traffic
from daemon.workers.view import ExitInfo, WorkerView
from engine.errors import BayardError, WorkerLost
from engine.messages import Knobs, Woken, WorkerConfig, read_figures

CUT_OFF = "was cut off: the daemon's event loop ended"

log = structlog.get_logger("bayard.workers")


class ManagedWorker:
    """Owner: the Supervisor. Its loop is one task; every change of state goes through _become."""

    def __init__(
        self,
        config: WorkerConfig,
        serials: Callable[[], str],
        launch: Launch,
        settings: WorkerSettings,
        events: EventLog,
        history: History,
        traffic: Traffic,
        device_memory: DeviceMemory | None = None,
    ) -> None:
        self.config = config
        self.state = WorkerState.STOPPED
        self.wanted = True
        self.proves = False  # whether a test generation comes before traffic
        self._serials = serials
        self._launch = launch
        self._settings = settings
        self._events = events
        self._history = history
        self._traffic = traffic
        self._backoff = Backoff(
            settings.backoff_base_s, settings.backoff_max_s, settings.latch_after, settings.fast_exit_s
        )
        self._since_at: datetime = utc_now()
        self._reason = "not started yet"
        self._now: Incarnation | None = None
        self._stop = asyncio.Event()
        self._sleep = self._keeps = False  # whether it is to sleep, and with its process
        self._device_memory = device_memory or DeviceMemory()
        self._hurry = asyncio.Event()
        self._drain_until_mono = 0.0
        self._stop_reason = ""
        self._start_reason = "wanted"
        self._delay_s: float | None = 0.0
        self._restarts = Restarts()
        self._last_exit: ExitInfo | None = None
        self._last_log_lines: tuple[str, ...] = ()
        self._retry_mono: float | None = None
        self._task = asyncio.create_task(self._run(), name=f"worker {config.worker_id}")

    @property
    def name(self) -> str:
        return self.config.worker_id

    def ask_stop(self, drain_s: float, reason: str, *, wanted: bool) -> None:
        """Drain, then end; start again if wanted. Returns at once. One that drains already follows the newest time."""
        self.wanted = wanted
        self._drain_until_mono = time.monotonic() + drain_s
        self._stop_reason = reason
        self._sleep = False
        self._backoff.reset()
        self._stop.set()

    def ask_sleep(self, drain_s: float, reason: str, *, keep: bool = False) -> None:
        """Drain, end and stay down until woken; it stays wanted. keep: the process stays, and gives memory back."""
        self._sleep = True
        self._keeps = keep
        self._drain_until_mono = time.monotonic() + drain_s
        self._stop_reason = reason
        self._backoff.reset()
        self._stop.set()

    @property
    def sleeps_because(self) -> str | None:
        """Why it sleeps, or will once it is drained; None where it does not."""
        return self._stop_reason if self._sleep and self.wanted else None

    def kill(self) -> bool:
        """End the present process at once, as if it had died by itself; False if there is none."""
        now = self._now
        if now is None or now.process is None or now.process.exited.done():
            return False
        now.process.send(signal.SIGKILL)
        return True

    def hurry(self) -> None:
        """Wait for no stream any more."""
        self._hurry.set()

    async def ended(self) -> None:
        """Blocks: until the worker is unwanted and gone."""
        await asyncio.shield(self._task)

    async def set_knobs(self, knobs: Knobs) -> None:
        """Change the running process, and what later ones start with."""
        self.config = msgspec.structs.replace(self.config, knobs=knobs)
        if self._now is not None and self.state in (WorkerState.READY, WorkerState.WARMING):
            await self._now.client.set_knobs(knobs)

    def view(self) -> WorkerView:
        now, now_mono = self._now, time.monotonic()
        return WorkerView(
            name=self.name,
            model=self.config.model_name,
            state=self.state,
            since_at=self._since_at,
            reason=self._reason,
            config=self.config,
            pid=now.pid if now else None,
            ready=now.ready if now else None,
            progress=now.progress if now else None,
            stats=now.client.stats if now else None,
            step_age_s=now_mono - now.client.last_progress_mono if now and now.ready else None,
            inflight=now.client.inflight if now else 0,
            restarts=self._restarts.total,
            restarts_24h=self._restarts.within_a_day(now_mono),
            last_exit=self._last_exit,
            last_log_lines=self._last_log_lines,
            retry_in_s=max(0.0, self._retry_mono - now_mono) if self._retry_mono is not None else None,
            log_path=log_path(self._launch.logs_dir, self.name),
            submitted_total=now.client.submitted_total if now else 0,
        )

    async def _run(self) -> None:
        while self.wanted:
            if self._sleep:  # asked before it was ever started
                await self._rest()
                continue
            self._stop.clear()
            try:
                if not await self._live_once():
                    await self._after_failure()
                if self._sleep and self.wanted:
                    await self._rest()
            except asyncio.CancelledError:  # the event loop ends, and the supervisor's own stop did not come so far
                await self._cut_off()
                raise
            except Exception as error:  # the border of this loop: the worker stays down, says so and waits to be asked
                log.exception("worker_loop_failed", worker=self.name)
                await self._after_fault(error)

    async def _after_fault(self, error: Exception) -> None:
        """Stay down after a fault of the daemon's own, from whatever state it struck in, until an operator asks."""
        before, self.state = self.state, WorkerState.LATCHED
        self._since_at = utc_now()
        self._reason = f"internal fault: {type(error).__name__}: {error}"
        self._retry_mono = None
        self._events.publish("worker", self.name, before, self.state, self._reason, model=self.config.model_name)
        if self._now is not None:
            await self._clear_away(self._now)
            self._now = None
        await self._stop.wait()
        self._go_on(self._reason)

    async def _cut_off(self) -> None:
        """Leave no process and end in a state, from whatever one: nobody will ask any more."""
        self.wanted = False
        if self._now is not None:
            await self._clear_away(self._now)
            self._now = None
        if self.state in (WorkerState.STARTING, WorkerState.WARMING):
            self._become(WorkerState.STOPPING, CUT_OFF)
        elif self.state in (WorkerState.READY, WorkerState.DRAINING):
            self._become(WorkerState.LOST, CUT_OFF)
        if self.state is not WorkerState.STOPPED:
            self._become(WorkerState.STOPPED, CUT_OFF)

    async def _clear_away(self, now: Incarnation) -> None:
        """What _live_once may not have come to; all of it may be done twice."""
        try:
            await now.end(gently=False)
            self._traffic.remove(self.name)
        except Exception:  # the border of one process: the next start is a new one
            log.exception("worker_not_cleared", worker=self.name, pid=now.pid)

    async def _live_once(self) -> bool:
        """One process from start to end. True if it ended because that was asked."""
        self._become(WorkerState.STARTING, self._start_reason)
        run_id = await self._history.began(self.name, self.config.model_name)
        self._now = now = Incarnation(self._launch, self._settings, self.config, self._serials())
        now.on_warming = self._on_warming
        failure: BayardError | None = None
        try:
            await self._serve(now, run_id)
        except asyncio.CancelledError:
            failure = WorkerLost(CUT_OFF)
            raise
        except BayardError as error:
            failure = error
        except Exception as error:  # the border of one process: it ends here, once, and the next start may do better
            log.exception("worker_fault", worker=self.name)
            failure = WorkerLost(f"met a fault of the daemon's: {type(error).__name__}: {error}")
        finally:
            self._traffic.remove(self.name)
            now.client.fail_all(error_for_streams(self.name, failure))
            if failure is not None and self.state in (WorkerState.READY, WorkerState.DRAINING):
                self._become(WorkerState.LOST, failure.message)
            elif failure is None:
                self._become(WorkerState.STOPPING, self._stop_reason)
            exit_info = await now.end(gently=failure is None)
        self._last_exit = exit_info
        reason = failure.message if failure else self._stop_reason
        self._history.ended(run_id, now.pid, exit_info, reason)
        if failure is None:
            self._now = None
            self._become(WorkerState.STOPPED, self._stop_reason)
            self._start_reason = self._stop_reason
            return True
        self._last_log_lines = now.last_log_lines()
        served_s = time.monotonic() - now.ready_mono if now.ready_mono is not None else 0.0
        self._delay_s = self._backoff.next_delay_s(reached_ready=now.ready_mono is not None, served_s=served_s)
        self._reason = reason
        self._now = None
        return False

    async def _serve(self, now: Incarnation, run_id: int | None) -> None:
        """Returns when asked to stop. Raises: BayardError when the process is of no more use."""
        self._traffic.start_text(self.config.model_path)
        if held := await self._device_memory.confirm_free(self.config.device, self._stop):
            log.warning("device_memory_not_free", worker=self.name, held=held)
            self._events.publish(
                "worker", self.name, self.state, self.state, f"device memory did not come back: {held}"
            )
        if self._stop.is_set():
            return
        await now.start()
        if not await now.until_ready(self._stop):
            return
        assert now.ready is not None
        self._on_warming()
        self._history.was_ready(run_id, now.pid)
        told = f"loaded in {now.ready.load_s:.1f} s; weights: {read_figures(now.ready, now.config.weights)}"
        while await self._serve_until_asked(now, told) and self._asked(now) is Asked.SLEEP:
            if (woken := await self._doze(now)) is None:
                return
            told = f"woken in {woken.took_s:.2f} s"

    async def _serve_until_asked(self, now: Incarnation, told: str) -> bool:
        """From warm to drained; False if stop was asked before it served."""
        if self.proves and not await prove(now, self._stop):
            return False
        if not await open_traffic(self._traffic, now, self.name, self.config, self._stop):
            return False
        if self.config.knobs != now.config.knobs:  # they were changed while it loaded, or since
            await now.client.set_knobs(self.config.knobs)
        self._become(WorkerState.READY, told, device=now.config.device)
        await now.until_over(self._stop)
        self._traffic.remove(self.name)
        self._become(WorkerState.DRAINING, self._stop_reason, inflight=now.client.inflight)
        if not await now.until_idle(lambda: self._drain_until_mono, self._hurry):
            log.warning("worker_drain_cut", worker=self.name, inflight=now.client.inflight)
        return True

    async def _doze(self, now: Incarnation) -> Woken | None:
        """Asleep with its process, then warm again. None: the process is to end."""
        found = await doze(now, self._stop, lambda: self._asked(now), self._become, lambda: self._stop_reason)
        if not isinstance(found, str):
            return found
        self._stop_reason = "; ".join(filter(None, (self._stop_reason, found)))
        return None

    def _asked(self, now: Incarnation) -> Asked:
        """Of a process that could sleep."""
        if not self.wanted or (self._sleep and not self._keeps):
            return Asked.END
        return Asked.SLEEP if self._sleep else Asked.WAKE if same_but_knobs(self.config, now.template) else Asked.END

    async def _after_failure(self) -> None:
        """Wait before the next start: for the back-off, or for an operator once latched."""
        cause = self._reason
        if self.wanted or self.state is not WorkerState.LOST:
            self._become(WorkerState.BACKOFF, cause)
        if not self.wanted:
            self._become(WorkerState.STOPPED, self._stop_reason)
            return
        if self._delay_s is None:
            count = self._backoff.fast_exits
            self._become(WorkerState.LATCHED, f"{count} fast exits in a row, the last: {cause}")
            await self._stop.wait()
        else:
            self._retry_mono = time.monotonic() + self._delay_s
            try:
                await asyncio.wait_for(self._stop.wait(), self._delay_s)
            except TimeoutError:
                self._reason = cause
            self._retry_mono = None
        self._go_on(cause)

    async def _rest(self) -> None:
        """Down on an operator's word. Blocks: until woken, or no longer wanted."""
        if self.state is not WorkerState.STOPPED:
            self._become(WorkerState.STOPPED, self._stop_reason)
        self._become(WorkerState.SLEEPING, self._stop_reason)
        while self._sleep and self.wanted:
            self._stop.clear()
            await self._stop.wait()
        self._start_reason = self._stop_reason
        if not self.wanted:
            self._become(WorkerState.STOPPED, self._stop_reason)

    def _go_on(self, cause: str) -> None:
        """After waiting: the next start, or the end."""
        if not self.wanted:
            self._become(WorkerState.STOPPED, self._stop_reason)
            return
        if self._sleep:
            return
        self._start_reason = self._stop_reason if self._stop.is_set() else f"again after: {cause}"
        self._restarts.note(time.monotonic())

    def _on_warming(self) -> None:
        if self.state is WorkerState.STARTING:
            self._become(WorkerState.WARMING, "loaded; warming up")

    def _become(self, state: WorkerState, reason: str, **fields: object) -> None:
        assert may_become(self.state, state), f"worker {self.name}: {self.state} -> {state} is no edge"
        before, self.state = self.state, state
        self._since_at = utc_now()
        self._reason = reason
        self._events.publish("worker", self.name, before, state, reason, model=self.config.model_name, **fields)
