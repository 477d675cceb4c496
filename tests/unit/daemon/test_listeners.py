"""Listening sockets: a port or path in use is a clear error before anything starts."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from daemon.listeners import listen_tcp, listen_unix
from engine.errors import ConfigError


def test_port_in_use_is_refused_naming_port_setting_and_holder() -> None:
    with listen_tcp("127.0.0.1", 0, "http") as first:
        port = first.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} on 127.0.0.1 is in use") as caught:
            listen_tcp("127.0.0.1", port, "grpc")
        assert f"(process {os.getpid()})" in caught.value.message
        assert "grpc.port (BAYARD_GRPC_PORT)" in caught.value.hint
        assert caught.value.exit_code == 78


def test_port_is_free_again_after_closing() -> None:
    first = listen_tcp("127.0.0.1", 0, "http")
    port = first.getsockname()[1]
    first.close()
    listen_tcp("127.0.0.1", port, "http").close()


def test_host_that_is_no_address_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"http\.host 'no host' is no address"):
        listen_tcp("no host", 0, "http")


def test_address_of_another_machine_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1"):
        listen_tcp("192.0.2.1", 0, "http")


def test_unix_socket_is_closed_to_others(short_dir: Path) -> None:
    path = short_dir / "run" / "admin.sock"
    with listen_unix(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        assert path.parent.stat().st_mode & 0o007 == 0


def test_socket_of_a_dead_process_is_replaced(short_dir: Path) -> None:
    path = short_dir / "admin.sock"
    listen_unix(path).close()
    assert path.exists()
    with listen_unix(path), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))


def test_socket_of_a_living_process_is_refused(short_dir: Path) -> None:
    path = short_dir / "admin.sock"
    with listen_unix(path), pytest.raises(ConfigError, match="another process answers"):
        listen_unix(path)


def test_file_in_the_way_is_not_removed(short_dir: Path) -> None:
    path = short_dir / "admin.sock"
    path.write_text("precious")
    with pytest.raises(ConfigError, match="is there and is no socket"):
        listen_unix(path)
    assert path.read_text() == "precious"
