"""Supervisor: the set of wanted workers, each kept running by its own ManagedWorker."""

from __future__ import annotations

import asyncio
import itertools
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import structlog

from daemon.events import EventLog
from daemon.settings import UNIX_PATH_MAX_BYTES, Settings
from daemon.store.session import Store
from daemon.workers.cgroup import CgroupTree
from daemon.workers.history import History
from daemon.workers.incarnation import Launch
from daemon.workers.managed import ManagedWorker
from daemon.workers.process import Spawner
from daemon.workers.states import WorkerState
from daemon.workers.traffic import Traffic
from daemon.workers.view import WorkerView
from engine.errors import ConfigError, Conflict, Draining, NotFound
from engine.messages import Knobs, WorkerConfig

if TYPE_CHECKING:
    from engine.client import EngineClient

_SOCKET_NAME_BYTES = len("/w999999.ipc")

log = structlog.get_logger("bayard.workers")


def _engine_client(endpoint: str) -> EngineClient:
    from engine.client import EngineClient

    return EngineClient(endpoint)


class Supervisor:
    """Owner: the Appliance. Event loop only.

    Raises: ConfigError if run_dir is too long a path for sockets, or control groups are wanted and not delegated.
    """

    def __init__(
        self,
        settings: Settings,
        spawner: Spawner,
        store: Store,
        events: EventLog,
        traffic: Traffic,
        *,
        env: dict[str, str] | None = None,
        make_client: Callable[[str], EngineClient] = _engine_client,
    ) -> None:
        _require_short(settings.run_dir)
        command = shlex.split(settings.workers.command) or [sys.executable, "-m", "engine.worker"]
        self._settings = settings.workers
        cgroups = None
        if settings.workers.cgroups:
            cgroups = CgroupTree.take_over(settings.workers.memory_max_bytes or None)
        self._launch = Launch(
            tuple(command),
            env or {},
            settings.run_dir,
            settings.logs_dir,
            spawner,
            make_client,
            cgroups,
            settings.packed_dir,
        )
        self._events = events
        self._traffic = traffic
        self.history = History(store)
        self._workers: dict[str, ManagedWorker] = {}
        self._numbers = itertools.count(1)
        self._stopping = False
        self.drained: dict[str, str] = {}  # device, as a worker's configuration names it, and why

    async def want(self, name: str, config: WorkerConfig, *, prove: bool = False) -> None:
        """Keep a worker of this name and configuration running; worker_id and endpoint are filled in here.

        prove: with a test generation before it takes requests.

        One that already runs so is left alone; one that differs in its knobs alone is changed in place; one that
        differs in more is drained and started anew. Returns at once.
        """
        if self._stopping:
            raise Draining("the daemon is stopping; no worker is started.", "Try again once it runs.")
        config = msgspec.structs.replace(config, worker_id=name, endpoint="")
        if config.threads == 0 and self._settings.threads:
            config = msgspec.structs.replace(config, threads=self._settings.threads)
        worker = self._workers.get(name)
        if worker is None:
            self._workers[name] = ManagedWorker(
                config, self._serial, self._launch, self._settings, self._events, self.history, self._traffic
            )
            self._workers[name].proves = prove
            if config.device in self.drained:
                self._workers[name].ask_sleep(0.0, self.drained[config.device])
            return
        if not worker.wanted:
            raise Conflict(f"worker {name} is being stopped.", "Wait until it is gone.")
        same_but_knobs = msgspec.structs.replace(worker.config, knobs=config.knobs) == config
        if worker.config == config:
            return
        if same_but_knobs:
            await worker.set_knobs(config.knobs)
            self._events.publish("worker", name, worker.state, worker.state, "knobs changed", **_plain(config.knobs))
            return
        worker.config = config
        worker.proves = prove
        if worker.state is WorkerState.SLEEPING:
            return  # it starts so when it is woken
        worker.ask_stop(self._settings.stop_grace_s, "its configuration changed", wanted=True)

    async def unwant(self, name: str, drain_s: float | None = None, reason: str = "no longer wanted") -> None:
        """Drain and end a worker. Blocks: until its process is gone. Raises: NotFound"""
        worker = self._worker(name)
        worker.ask_stop(self._settings.stop_grace_s if drain_s is None else drain_s, reason, wanted=False)
        await worker.ended()
        if self._workers.get(name) is worker:
            del self._workers[name]
        path = worker.config.model_path
        if all(other.config.model_path != path for other in self._workers.values()):
            self._traffic.forget_text(path)

    async def restart(self, name: str, drain_s: float | None = None, reason: str = "restart asked") -> None:
        """Drain and start again; also wakes one that is latched or in back-off. Returns at once. Raises: NotFound"""
        worker = self._worker(name)
        self._require_device(worker)
        if worker.wanted:
            worker.ask_stop(self._settings.stop_grace_s if drain_s is None else drain_s, reason, wanted=True)

    async def sleep(
        self, name: str, drain_s: float | None = None, reason: str = "sleep asked", *, keep: bool = False
    ) -> None:
        """Drain and end it, and keep it down until it is woken. Returns at once. Raises: NotFound

        keep: its process stays, and gives back the KV pool and its device's memory
        """
        worker = self._worker(name)
        if worker.wanted:
            worker.ask_sleep(self._settings.stop_grace_s if drain_s is None else drain_s, reason, keep=keep)

    async def wake(self, name: str, reason: str = "wake asked", *, prove: bool = False) -> None:
        """Let one that sleeps serve again, after a test generation if asked. Returns at once.

        Raises: NotFound, Conflict if it does not sleep
        """
        worker = self._worker(name)
        if worker.state is not WorkerState.SLEEPING:
            raise Conflict(f"worker {name} is {worker.state}, not sleeping.", "`bayard workers list` shows the states.")
        self._require_device(worker)
        worker.proves = prove
        worker.ask_stop(0.0, reason, wanted=True)

    async def drain_device(self, device: str, reason: str) -> list[str]:
        """Put its workers to sleep, and those that are wanted there later, until undrain_device. Returns at once."""
        self.drained[device] = reason
        there = [name for name, worker in self._workers.items() if worker.config.device == device and worker.wanted]
        for name in there:
            self._workers[name].ask_sleep(self._settings.stop_grace_s, reason)
        return there

    async def undrain_device(self, device: str) -> list[str]:
        """Wake what sleeps because of the drain; what an operator put to sleep by name sleeps on. Returns at once."""
        reason = self.drained.pop(device, None)
        woken = []
        for name, worker in self._workers.items():
            because = worker.sleeps_because
            if reason is not None and because is not None and because.startswith(reason):
                worker.ask_stop(0.0, "its device is in use again", wanted=True)
                woken.append(name)
        return woken

    async def kill(self, name: str) -> None:
        """End its process at once; it is started again as after a crash. Raises: NotFound, Conflict if none runs"""
        if not self._worker(name).kill():
            raise Conflict(f"worker {name} has no process now.", "`bayard workers list` shows the states.")

    async def set_knobs(self, name: str, knobs: Knobs) -> None:
        """Change a running worker without interrupting a stream. Raises: NotFound"""
        worker = self._worker(name)
        await self.want(name, msgspec.structs.replace(worker.config, knobs=knobs))

    def views(self) -> list[WorkerView]:
        """Every wanted or leaving worker, by name."""
        return [self._workers[name].view() for name in sorted(self._workers)]

    def view(self, name: str) -> WorkerView:
        """Raises: NotFound"""
        return self._worker(name).view()

    def sickly(self) -> list[str]:
        """One sentence for each worker that should serve and does not: stuck, lost, waiting, given up."""
        found = []
        for view in self.views():
            if view.state in (WorkerState.LOST, WorkerState.BACKOFF, WorkerState.LATCHED):
                found.append(f"worker {view.name} is {view.state}: {view.reason}")
            elif view.state is WorkerState.READY and (view.step_age_s or 0.0) > self._settings.stall_after_s:
                found.append(f"worker {view.name} has not moved for {view.step_age_s:.1f} s")
        return found

    async def stop(self, drain_s: float) -> None:
        """Drain and end every worker together; the fault of one leaves no other running. Blocks: until all are gone."""
        self._stopping = True
        for worker in self._workers.values():
            worker.ask_stop(drain_s, "the daemon is stopping", wanted=False)
        ends = await asyncio.gather(*(worker.ended() for worker in self._workers.values()), return_exceptions=True)
        for name, end in zip(self._workers, ends, strict=True):
            if end is not None:
                log.error("worker_not_stopped", worker=name, error=repr(end))
        self._workers.clear()

    def hurry(self) -> None:
        """A second request to stop: wait for no stream any more."""
        for worker in self._workers.values():
            worker.hurry()

    def _worker(self, name: str) -> ManagedWorker:
        worker = self._workers.get(name)
        if worker is None:
            known = ", ".join(sorted(self._workers)) or "none"
            raise NotFound(f"there is no worker {name!r}.", f"Workers: {known}.")
        return worker

    def _require_device(self, worker: ManagedWorker) -> None:
        device = worker.config.device
        if device in self.drained:
            raise Conflict(f"the device {device} is drained: {self.drained[device]}.", "Undrain the accelerator first.")

    def _serial(self) -> str:
        return f"w{next(self._numbers)}"


def _plain(knobs: Knobs) -> dict[str, object]:
    return dict(msgspec.structs.asdict(knobs))


def _require_short(run_dir: Path) -> None:
    size = len(str(run_dir).encode()) + _SOCKET_NAME_BYTES
    if size > UNIX_PATH_MAX_BYTES:
        raise ConfigError(
            f"run_dir {run_dir} makes socket paths of {size} bytes; a unix socket allows {UNIX_PATH_MAX_BYTES}.",
            "Name a shorter one with --run-dir or BAYARD_RUN_DIR.",
        )
