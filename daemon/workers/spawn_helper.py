"""The helper process that starts workers: single-threaded, standard library only, started before anything else.

It exists because forking is safe only in a process without threads (gRPC's fork handlers hang), and because a child's
parent-death signal follows the thread that made it. Commands come over a socket; when that closes, however the daemon
ended, every worker's process group is killed and the helper ends.

    daemon -> helper   {"op": "spawn", "id", "argv", "env", "log", "log_bytes", "cgroup"}
                       {"op": "signal", "id", "signal"}
    helper -> daemon   {"event": "spawned", "id", "pid"}   {"event": "failed", "id", "error"}
                       {"event": "exited", "id", "status", "signal", "peak_rss_bytes"}
"""

from __future__ import annotations

import ctypes
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from daemon.workers.worker_log import WorkerLog

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
MESSAGE_BYTES = 128 << 10


@dataclass(slots=True)
class Child:
    id: int
    process: subprocess.Popen[bytes]
    output_fd: int
    log: WorkerLog


class SpawnHelper:
    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # a rank that outlives its worker comes to us
        self._children: dict[int, Child] = {}  # by pid
        self._selector = selectors.DefaultSelector()
        self._wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        for number in IGNORED:
            signal.signal(number, signal.SIG_IGN)  # the daemon decides when workers end
        self._selector.register(channel, selectors.EVENT_READ, self._on_command)
        self._selector.register(self._wake_read, selectors.EVENT_READ, self._on_signal)

    def run(self) -> None:
        """Blocks: until the daemon is gone."""
        try:
            while True:
                for key, _ in self._selector.select():
                    key.data(key.fileobj)
        except EOFError:
            return
        finally:
            for pid in self._children:
                _kill_group(pid, signal.SIGKILL)

    def _on_command(self, channel: socket.socket) -> None:
        data = channel.recv(MESSAGE_BYTES)
        if not data:
            raise EOFError
        command = json.loads(data)
        if command["op"] == "spawn":
            self._spawn(command)
        else:
            for pid, child in list(self._children.items()):
                if child.id == command["id"]:
                    _kill_group(pid, command["signal"])

    def _spawn(self, command: dict[str, Any]) -> None:
        log = WorkerLog(command["log"], command["log_bytes"])
        output_fd, child_fd = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(output_fd, False)
        helper_pid = os.getpid()
        libc = self._libc
        cgroup = command["cgroup"]

        def in_child() -> None:
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            for number in IGNORED:  # being ignored would pass on to the worker
                signal.signal(number, signal.SIG_DFL)
            if cgroup:  # before it allocates anything
                with open(os.path.join(cgroup, "cgroup.procs"), "w") as procs:
                    procs.write("0")
            if os.getppid() != helper_pid:  # the helper died between fork and prctl
                os._exit(1)

        try:
            process = subprocess.Popen(
                command["argv"],
                env={**os.environ, **command["env"]},
                stdin=subprocess.DEVNULL,
                stdout=child_fd,
                stderr=child_fd,
                start_new_session=True,
                preexec_fn=in_child,
            )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            os.close(output_fd)
            log.close()
            self._tell({"event": "failed", "id": command["id"], "error": str(error)})
            return
        finally:
            os.close(child_fd)
        self._children[process.pid] = Child(command["id"], process, output_fd, log)
        self._selector.register(output_fd, selectors.EVENT_READ, self._on_output)
        self._tell({"event": "spawned", "id": command["id"], "pid": process.pid})

    def _on_output(self, fd: int) -> None:
        for child in self._children.values():
            if child.output_fd == fd:
                if not _pump(child):
                    self._selector.unregister(fd)
                return
        self._selector.unregister(fd)

    def _on_signal(self, fd: int) -> None:
        os.read(fd, 4096)
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if found is None:
                return
            pid = found.si_pid
            if pid in self._children:
                _kill_group(
                    pid, signal.SIGKILL
                )  # ranks it left behind; before reaping, while the number is surely its own
            _, status, usage = os.wait4(pid, 0)
            child = self._children.pop(pid, None)
            if child is not None:
                self._end(child, status, usage.ru_maxrss)

    def _end(self, child: Child, status: int, peak_kib: int) -> None:
        _pump(child)
        if child.output_fd in self._selector.get_map():
            self._selector.unregister(child.output_fd)
        os.close(child.output_fd)
        child.log.close()
        code = os.waitstatus_to_exitcode(status)
        child.process.returncode = code  # reaped here: Popen must not wait for it again
        self._tell(
            {
                "event": "exited",
                "id": child.id,
                "status": code if code >= 0 else None,
                "signal": -code if code < 0 else None,
                "peak_rss_bytes": peak_kib << 10,
            }
        )

    def _tell(self, message: dict[str, Any]) -> None:
        try:
            self._channel.send(json.dumps(message).encode())
        except OSError as error:  # the daemon is gone
            raise EOFError from error


def _pump(child: Child) -> bool:
    """Move what the child wrote into its log; False at its end."""
    while True:
        try:
            data = os.read(child.output_fd, 64 << 10)
        except BlockingIOError:
            return True
        if not data:
            return False
        child.log.write(data)


def _kill_group(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return


def main() -> None:
    SpawnHelper(socket.socket(fileno=int(sys.argv[1]))).run()


if __name__ == "__main__":
    main()
