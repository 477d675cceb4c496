"""The daemon's side of the spawn helper: start worker processes, signal them, hear of their end."""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from daemon.workers.spawn_helper import MESSAGE_BYTES
from daemon.workers.view import ExitInfo
from engine.errors import WorkerLost

log = structlog.get_logger("bayard.spawner")


@dataclass(slots=True)
class WorkerProcess:
    """One spawned process and its group. Owner: the ManagedWorker that asked for it."""

    id: int
    pid: int
    exited: asyncio.Future[ExitInfo]
    _spawner: Spawner = field(repr=False)

    def send(self, number: signal.Signals) -> None:
        """Signal the whole process group; nothing happens if it has ended."""
        if not self.exited.done():
            self._spawner._tell({"op": "signal", "id": self.id, "signal": int(number)})


class Spawner:
    """Starts the helper when made, before the event loop, threads and gRPC. Owner: the Appliance."""

    def __init__(self) -> None:
        self._ids = itertools.count(1)
        self._starting: dict[int, asyncio.Future[int]] = {}
        self._running: dict[int, WorkerProcess] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._start_helper()

    @property
    def helper_pid(self) -> int:
        return self._helper.pid

    async def spawn(
        self, argv: list[str], *, env: dict[str, str], log_path: Path, log_bytes: int, cgroup: Path | None = None
    ) -> WorkerProcess:
        """Start a process in a group of its own; its output goes to log_path, the log before to log_path.1.

        cgroup: the control group that it is put in before it starts

        Raises: WorkerLost if it cannot be started.
        """
        self._attach()
        spawn_id = next(self._ids)
        started: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        exited: asyncio.Future[ExitInfo] = asyncio.get_running_loop().create_future()
        process = WorkerProcess(spawn_id, 0, exited, self)
        self._starting[spawn_id] = started
        self._running[spawn_id] = process
        self._tell(
            {
                "op": "spawn",
                "id": spawn_id,
                "argv": argv,
                "env": env,
                "log": str(log_path),
                "log_bytes": log_bytes,
                "cgroup": str(cgroup) if cgroup else "",
            }
        )
        try:
            process.pid = await started
        except BaseException:
            self._running.pop(spawn_id, None)
            self._tell({"op": "signal", "id": spawn_id, "signal": int(signal.SIGKILL)})
            raise
        finally:
            self._starting.pop(spawn_id, None)
        return process

    def close(self) -> None:
        """End the helper; it kills whatever still runs. Blocks: briefly. Harmless when repeated."""
        self._detach()
        self._channel.close()
        try:
            self._helper.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._helper.kill()
            self._helper.wait()

    def _start_helper(self) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # a session of its own: Ctrl-C at a terminal reaches the daemon alone
            self._helper = subprocess.Popen(
                [sys.executable, "-m", "daemon.workers.spawn_helper", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._channel.setblocking(False)

    def _attach(self) -> None:
        if self._loop is None:
            if self._helper.poll() is not None:
                self._channel.close()
                self._start_helper()
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._channel.fileno(), self._on_readable)

    def _detach(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._channel.fileno())
        self._loop = None

    def _tell(self, message: dict[str, Any]) -> None:
        data = json.dumps(message).encode()
        if len(data) > MESSAGE_BYTES:
            raise WorkerLost(f"a spawn message has {len(data)} bytes; the helper takes {MESSAGE_BYTES}.")
        try:
            self._channel.send(data)
        except OSError as error:
            self._on_helper_lost(str(error))

    def _on_readable(self) -> None:
        try:
            data = self._channel.recv(MESSAGE_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._on_helper_lost(str(error))
            return
        if not data:
            self._on_helper_lost("its end of the socket closed")
            return
        message = json.loads(data)
        spawn_id = message["id"]
        started = self._starting.get(spawn_id)
        match message["event"]:
            case "spawned" if started is not None and not started.done():
                started.set_result(message["pid"])
            case "failed":
                self._running.pop(spawn_id, None)
                if started is not None and not started.done():
                    started.set_exception(WorkerLost(f"the worker process could not be started: {message['error']}."))
            case "exited":
                process = self._running.pop(spawn_id, None)
                if process is not None and not process.exited.done():
                    process.exited.set_result(ExitInfo(message["status"], message["signal"], message["peak_rss_bytes"]))

    def _on_helper_lost(self, reason: str) -> None:
        """Its death kills the workers (parent-death signal); the next spawn starts another helper."""
        log.error("spawn_helper_lost", reason=reason, workers=len(self._running))
        self._detach()
        if self._helper.poll() is None:
            self._helper.kill()
            self._helper.wait()
        for started in self._starting.values():
            if not started.done():
                started.set_exception(WorkerLost(f"the spawn helper was lost: {reason}."))
        for process in self._running.values():
            if not process.exited.done():
                process.exited.set_result(ExitInfo())
        self._running.clear()
