"""One process at a time may own a state folder: an advisory lock that the kernel drops with its holder."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import structlog

from engine.errors import ConfigError, StateInUse

DAEMON_WAIT_S = 30.0  # for an offline command; the unit's ten starts in 300 s are not used up by waiting so long
LOOK_EVERY_S = 0.1

log = structlog.get_logger("bayard.store")


class StateLock:
    """Held from acquire to release, or to the end of the process. Owner: the daemon, or an offline command."""

    def __init__(self, fd: int, path: Path) -> None:
        self._fd = fd
        self.path = path

    @classmethod
    def acquire(cls, state_dir: Path, wait_s: float = 0.0, admin_socket: Path | None = None) -> StateLock:
        """Make the folder if needed and lock it.

        wait_s: how long a holder that may end soon is waited for; a daemon that answers on admin_socket is not.
        Blocks: up to wait_s
        Raises: ConfigError if the folder cannot be written, or a daemon runs in it; StateInUse if another process
        holds it (both naming its pid)
        """
        make_private_dir(state_dir)
        path = state_dir / "bayard.lock"
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise unwritable(state_dir, error) from error
        try:
            _lock_within(fd, state_dir, wait_s, admin_socket)
        except BaseException:
            os.close(fd)
            raise
        try:
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            os.close(fd)
            raise unwritable(state_dir, error) from error
        return cls(fd, path)

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)  # the file stays: removing it would let two processes lock two files of one name
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _lock_within(fd: int, state_dir: Path, wait_s: float, admin_socket: Path | None) -> None:
    """Raises: ConfigError, StateInUse"""
    until, told = time.monotonic() + wait_s, False
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as error:
            pid = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
            is_daemon = admin_socket is not None and _answers(admin_socket)
            if is_daemon or time.monotonic() >= until:
                raise (ConfigError if is_daemon else StateInUse)(
                    f"the state folder {state_dir} is in use by process {pid}.",
                    "Stop that process first, or give this one a folder of its own with --state-dir.",
                ) from error
        if not told:
            log.warning("state_folder_in_use", process=pid, waits_s=wait_s)
            told = True
        time.sleep(LOOK_EVERY_S)


def _answers(admin_socket: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(admin_socket))
        except OSError:
            return False
    return True


def lock_holder(state_dir: Path) -> int | None:
    """The pid that holds the folder now; None if nobody does."""
    try:
        fd = os.open(state_dir / "bayard.lock", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.pread(fd, 32, 0).decode(errors="replace").strip()
        return int(text) if text.isdigit() else None
    finally:
        os.close(fd)
    return None


def make_private_dir(path: Path) -> None:
    """Raises: ConfigError if it cannot be made."""
    try:
        path.mkdir(mode=0o750, parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(path, error) from error


def make_private_file(path: Path) -> None:
    """An empty one where none is; nobody but its owner reads it, nor what a database puts beside it.

    Raises: ConfigError if it cannot be made
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(fd).st_uid == os.geteuid():
                os.fchmod(fd, 0o600)
        finally:
            os.close(fd)
    except OSError as error:
        raise unwritable(path.parent, error) from error


def unwritable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"the folder {path} cannot be written: {error.strerror or error}.",
        f"Make it writable for user id {os.geteuid()}, or name another with --state-dir.",
    )
