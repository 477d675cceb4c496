"""Listening sockets, bound before any server starts, so that one that is taken is a clear error."""

from __future__ import annotations

import errno
import os
import socket
import stat
from pathlib import Path

from engine.errors import ConfigError

BACKLOG = 2048


def listen_tcp(host: str, port: int, setting: str) -> socket.socket:
    """A listening socket; port 0 takes a free one. setting is "http" or "grpc".

    Raises: ConfigError naming the address, the setting and, if it can be read, the process that holds the port.
    """
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise ConfigError(f"{setting}.host {host!r} is no address: {error.strerror}.", "Correct it.") from error
    sock = socket.socket(family, kind, proto)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise _refused(host, port, setting, error) from error
    return sock


def listen_unix(path: Path, mode: int = 0o660) -> socket.socket:
    """A listening unix socket, only for its owner and group. One that a dead process left is replaced.

    Raises: ConfigError if somebody still answers there, or the path cannot be used.
    """
    try:
        path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        _remove_dead(path)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o777 & ~mode)
        try:
            sock.bind(str(path))
        finally:
            os.umask(before)
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        raise ConfigError(
            f"the admin socket {path} cannot be made: {error.strerror or error}.", "Name another with --run-dir."
        ) from error
    return sock


def prepare_unix(path: Path) -> None:
    """Make room for a socket that another library binds: its folder is there, and no dead socket.

    Raises: ConfigError if somebody answers there, or the path cannot be used.
    """
    try:
        path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        _remove_dead(path)
    except OSError as error:
        raise ConfigError(f"the socket {path} cannot be made: {error.strerror or error}.", "Name another.") from error


def close_unix(sock: socket.socket, path: Path) -> None:
    """Close it and remove its path."""
    sock.close()
    path.unlink(missing_ok=True)


def _remove_dead(path: Path) -> None:
    try:
        if not stat.S_ISSOCK(path.stat().st_mode):
            raise ConfigError(f"{path} is there and is no socket.", "Remove it, or name another with --run-dir.")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
    raise ConfigError(f"another process answers on {path}.", "Stop it, or name another folder with --run-dir.")


def _refused(host: str, port: int, setting: str, error: OSError) -> ConfigError:
    if error.errno == errno.EADDRINUSE:
        holder = _holder(port)
        return ConfigError(
            f"port {port} on {host} is in use{f' by {holder}' if holder else ''}.",
            f"Stop that process, or choose another with {setting}.port (BAYARD_{setting.upper()}_PORT).",
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return ConfigError(
            f"port {port} on {host} may not be used: {error.strerror}.", f"Choose {setting}.port >= 1024."
        )
    return ConfigError(f"{setting} cannot listen on {host} port {port}: {error.strerror}.", f"Check {setting}.host.")


def _holder(port: int) -> str | None:
    import psutil

    try:
        for found in psutil.net_connections(kind="tcp"):
            if found.status == psutil.CONN_LISTEN and found.laddr and found.laddr.port == port and found.pid:
                return f"{psutil.Process(found.pid).name()} (process {found.pid})"
    except (psutil.Error, OSError):  # another user's process is not ours to see
        return None
    return None
