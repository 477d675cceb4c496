"""One process of a worker, from spawn to exit: its client, its files, its signs of life."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import structlog
import zmq

from daemon.settings import WorkerSettings
from daemon.workers.cgroup import CgroupTree
from daemon.workers.oom import OomCounter, kernel_log_of
from daemon.workers.process import Spawner, WorkerProcess
from daemon.workers.view import ExitInfo
from daemon.workers.worker_log import last_lines
from engine.errors import WorkerLost, WorkerStalled
from engine.messages import PROTOCOL_VERSION, ErrorInfo, LoadProgress, WorkerConfig, WorkerFailed, WorkerReady

if TYPE_CHECKING:
    from engine.client import EngineClient

TICK_S = 0.25
LAST_WORDS_S = 0.05  # for a WorkerFailed that is still in the socket when the exit is seen
STOP_SEND_S = 0.5
TERM_S = 3.0
KILL_S = 10.0
BUSY_CORE_SHARE = 0.05  # of one core; less is no computing
_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")

Answer = TypeVar("Answer")

log = structlog.get_logger("bayard.workers")


@dataclass(frozen=True, slots=True)
class Launch:
    """How a worker process is started."""

    command: tuple[str, ...]  # the start-up file's path is appended
    env: dict[str, str]
    run_dir: Path
    logs_dir: Path
    spawner: Spawner
    make_client: Callable[[str], EngineClient]
    cgroups: CgroupTree | None = None
    packed_dir: Path | None = None  # where CPU workers keep packed weights for their next start


class Incarnation:
    """Owner: one turn of a ManagedWorker's loop. Event loop only."""

    def __init__(self, launch: Launch, settings: WorkerSettings, template: WorkerConfig, serial: str) -> None:
        self._launch = launch
        self._settings = settings
        socket_path = launch.run_dir / f"{serial}.ipc"
        self.template = template  # what was asked for, without what a start of its own adds
        self.config = msgspec.structs.replace(template, endpoint=f"ipc://{socket_path}", kv_scales=settings.kv_scales)
        if launch.packed_dir is not None and settings.packed_bytes and template.device == "cpu":
            self.config = msgspec.structs.replace(
                self.config, packed_dir=str(launch.packed_dir), packed_bytes=settings.packed_bytes
            )
        self.config_path = launch.run_dir / f"{serial}.json"
        self._socket_path = socket_path
        self.log_path = log_path(launch.logs_dir, template.worker_id)
        self.client: EngineClient = launch.make_client(self.config.endpoint)
        self.client.on_progress = self._on_progress
        self.client.on_failed = self._on_failed
        self.process: WorkerProcess | None = None
        self.ready: WorkerReady | None = None
        self.ready_mono: float | None = None
        self.progress: LoadProgress | None = None
        self.failure: ErrorInfo | None = None
        self.on_warming: Callable[[], None] | None = None
        self._cgroup: Path | None = None
        self._oom_before = OomCounter.read()
        self._still_s = 0.0
        self._idle_s = 0.0
        self._seen = (0.0, 0.0, time.monotonic())  # progress, cpu seconds, when looked

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process is not None else None

    async def start(self) -> None:
        """Bind the endpoint and spawn. Raises: WorkerLost."""
        try:
            self._launch.run_dir.mkdir(mode=0o750, parents=True, exist_ok=True)
            self._launch.logs_dir.mkdir(mode=0o750, parents=True, exist_ok=True)
            self._socket_path.unlink(missing_ok=True)
            self.config_path.write_bytes(msgspec.json.encode(self.config))
            if self._launch.cgroups is not None:
                self._cgroup = self._launch.cgroups.make(self.config.worker_id)
                self._oom_before = OomCounter.of(self._cgroup)
            await self.client.start()
        except (OSError, zmq.ZMQError) as error:
            raise WorkerLost(f"could not be given its start-up files in {self._launch.run_dir}: {error}") from error
        self.process = await self._launch.spawner.spawn(
            [*self._launch.command, str(self.config_path)],
            env=self._launch.env,
            log_path=self.log_path,
            log_bytes=self._settings.log_bytes,
            cgroup=self._cgroup,
        )

    async def until_ready(self, stop: asyncio.Event) -> bool:
        """Wait for the worker to be loaded; False if stop was asked first.

        Raises: WorkerLost if it ended or is of another version, WorkerStalled if it made no progress for
        start_progress_timeout_s.
        """
        assert self.process is not None
        waiting = asyncio.ensure_future(stop.wait())
        try:
            while not stop.is_set():
                await _first_of(self.client.ready, self.process.exited, waiting)
                if self.client.ready.done() and not self.client.ready.cancelled():
                    ready = self.client.ready.result()
                    if ready.protocol != PROTOCOL_VERSION:  # the installation was replaced under a running daemon
                        raise WorkerLost(
                            f"speaks protocol {ready.protocol}; this daemon speaks {PROTOCOL_VERSION}: restart it"
                        )
                    self.ready = ready
                    self.ready_mono = time.monotonic()
                    return True
                if self.process.exited.done():
                    await asyncio.sleep(LAST_WORDS_S)
                self._raise_if_exited("while loading")
                age_s = time.monotonic() - self.client.last_progress_mono
                limit_s = self._settings.start_progress_timeout_s
                if age_s > limit_s:
                    raise WorkerStalled(f"made no progress in loading for {age_s:.1f} s (limit {limit_s:g} s)")
        finally:
            waiting.cancel()
        return False

    async def until_over(self, stop: asyncio.Event) -> None:
        """Wait while all is well; return when stop is asked. Raises: WorkerLost, WorkerStalled."""
        assert self.process is not None
        waiting = asyncio.ensure_future(stop.wait())
        try:
            while not stop.is_set():
                await _first_of(self.process.exited, waiting)
                self.check()
        finally:
            waiting.cancel()

    async def until_idle(self, until_mono: Callable[[], float], hurry: asyncio.Event) -> bool:
        """Wait for the running streams; False if the time, which may change meanwhile, was not enough.

        Raises: WorkerLost, WorkerStalled
        """
        while self.client.inflight and time.monotonic() < until_mono() and not hurry.is_set():
            await asyncio.sleep(0.02)
            self.check()
        return self.client.inflight == 0

    def check(self) -> None:
        """Raise if the process has ended or stands still.

        Counted in observed time: a daemon that was itself stopped or starved blames nobody for the gap.
        Raises: WorkerLost, WorkerStalled
        """
        self._raise_if_exited("while serving")
        progress, cpu_s, then = self._seen
        now = time.monotonic()
        elapsed_s = min(now - then, 2 * TICK_S)
        if elapsed_s < TICK_S / 2:
            return
        cpu_now_s = _cpu_seconds(self.pid)
        computing = cpu_now_s is not None and cpu_now_s - cpu_s > BUSY_CORE_SHARE * elapsed_s
        moved = self.client.last_progress_mono != progress
        self._still_s = 0.0 if moved else self._still_s + elapsed_s
        self._idle_s = 0.0 if moved or computing else self._idle_s + elapsed_s
        self._seen = (self.client.last_progress_mono, cpu_now_s or 0.0, now)
        for stood_s, limit_s in (
            (self._idle_s, self._settings.stall_after_s),
            (self._still_s, self._settings.busy_stall_after_s),
        ):
            if stood_s >= limit_s:
                raise WorkerStalled(f"made no step for {stood_s:.1f} s (limit {limit_s:g} s)")

    async def end(self, *, gently: bool) -> ExitInfo | None:
        """End the process (Stop, then SIGTERM, then SIGKILL; at once unless gently) and free what it held."""
        exit_info = None
        try:
            if self.process is not None:
                exit_info = await self._end_process(self.process, gently)
        finally:
            with contextlib.suppress(asyncio.CancelledError):
                await self.client.close()
            self.config_path.unlink(missing_ok=True)
            self._socket_path.unlink(missing_ok=True)
            if self._launch.cgroups is not None:
                self._launch.cgroups.remove(self.config.worker_id)
        return exit_info

    def last_log_lines(self) -> tuple[str, ...]:
        return last_lines(self.log_path)

    async def _end_process(self, process: WorkerProcess, gently: bool) -> ExitInfo | None:
        if gently and self.ready is not None and not process.exited.done():  # one that loads reads no messages yet
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.client.stop(), STOP_SEND_S)
            await _ended_within(process, TERM_S)
        if gently and not process.exited.done():
            process.send(signal.SIGTERM)
            await _ended_within(process, TERM_S)
        if not process.exited.done():
            process.send(signal.SIGKILL)
            if not await _ended_within(process, KILL_S):
                log.error("worker_unkillable", worker=self.config.worker_id, pid=process.pid, waited_s=KILL_S)
                return None
        return process.exited.result()

    def _raise_if_exited(self, when: str) -> None:
        assert self.process is not None
        if self.process.exited.done():
            exit_info = self.process.exited.result()
            cause = self.failure.message if self.failure is not None else ""
            if not cause and exit_info.signal == signal.SIGKILL:
                now = OomCounter.read() if self._cgroup is None else OomCounter.of(self._cgroup)
                cause = now.since(self._oom_before) or kernel_log_of(self.pid)
            raise WorkerLost(f"ended {when}, {exit_info}{': ' if cause else ''}{cause}")

    def _on_progress(self, progress: LoadProgress) -> None:
        self.progress = progress
        if progress.stage == "warming" and self.on_warming is not None:
            self.on_warming()

    def _on_failed(self, failed: WorkerFailed) -> None:
        self.failure = failed.error


def log_path(logs_dir: Path, worker: str) -> Path:
    """Where this start's log is; the one before has .1 behind."""
    safe = "".join(char if char.isalnum() or char in "-_." else "_" for char in worker)
    return logs_dir / f"worker-{safe}.log"


async def while_alive(now: Incarnation, answer: Coroutine[Any, Any, Answer]) -> Answer:
    """What the process answers, watching it meanwhile. Raises: WorkerLost, WorkerStalled"""
    asking = asyncio.ensure_future(answer)
    watching = asyncio.ensure_future(now.until_over(asyncio.Event()))
    try:
        await asyncio.wait({asking, watching}, return_when=asyncio.FIRST_COMPLETED)
        if watching.done():
            watching.result()
        return await asking
    finally:
        for task in (asking, watching):
            task.cancel()
        await asyncio.gather(asking, watching, return_exceptions=True)


async def _first_of(*futures: asyncio.Future[Any]) -> None:
    await asyncio.wait(list(futures), timeout=TICK_S, return_when=asyncio.FIRST_COMPLETED)


async def _ended_within(process: WorkerProcess, seconds: float) -> bool:
    done, _ = await asyncio.wait({process.exited}, timeout=seconds)
    return bool(done)


def _cpu_seconds(pid: int | None) -> float | None:
    """User and system time of a process; None if it cannot be read."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _CLOCK_TICKS
    except (OSError, IndexError, ValueError):
        return None
