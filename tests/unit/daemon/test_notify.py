"""Telling systemd: the datagrams it would get."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon.notify import keep_manager_informed, notify, watchdog_period_s


@pytest.fixture
def manager(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    path = short_dir / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(path))
        sock.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", str(path))
        yield sock


def test_lines_arrive_in_one_datagram(manager: socket.socket) -> None:
    notify("READY=1", "STATUS=here")
    assert manager.recv(999) == b"READY=1\nSTATUS=here"


def test_abstract_address_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        name = f"bayard-test-{os.getpid()}"
        sock.bind("\0" + name)
        monkeypatch.setenv("NOTIFY_SOCKET", "@" + name)
        notify("READY=1")
        assert sock.recv(99) == b"READY=1"


def test_no_manager_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notify("READY=1")
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    notify("READY=1")


def test_period_is_a_third_of_what_the_manager_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "9000000")
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    assert watchdog_period_s() == 3.0
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid() + 1))
    assert watchdog_period_s() is None
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    assert watchdog_period_s() == 3.0
    for nothing in ("", "0", "x"):
        monkeypatch.setenv("WATCHDOG_USEC", nothing)
        assert watchdog_period_s() is None


async def test_pings_only_while_alive_and_status_only_when_it_changes(
    manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "60000")
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    alive = [True]
    task = asyncio.create_task(keep_manager_informed(lambda: f"alive\n{alive[0]}", lambda: alive[0]))
    await asyncio.sleep(0.1)
    alive[0] = False
    await asyncio.sleep(0.05)
    manager.setblocking(False)
    got = []
    try:
        while True:
            got.append(manager.recv(999))
    except BlockingIOError:
        pass
    await asyncio.sleep(0.1)
    with pytest.raises(BlockingIOError):
        manager.recv(999)
    task.cancel()
    assert got[0] == b"STATUS=alive True\nWATCHDOG=1"
    assert got.count(b"WATCHDOG=1") >= 2
    assert [g for g in got if b"STATUS" in g] == [got[0], b"STATUS=alive False"]
