"""Many connections at once, and no file descriptors left: what can be served is, and it recovers without a restart.

BAYARD_TEST_CONNECTIONS sets how many connections stand idle; the limit of open files has to allow them twice.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from contextlib import suppress
from urllib.parse import urlsplit

import httpx
import psutil

from tests.e2e.daemon.conftest import MODEL, Daemon

IDLE = int(os.environ.get("BAYARD_TEST_CONNECTIONS", "600"))
BODY = {"model": MODEL, "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}]}


def ask(daemon: Daemon, key: str) -> int:
    headers = {"authorization": f"Bearer {key}"}
    return httpx.post(
        f"{daemon.url}/v1/chat/completions", json=BODY, headers=headers, timeout=30, trust_env=False
    ).status_code


async def stand_idle(url: str, count: int, until: asyncio.Event) -> int:
    """How many connections were open at once."""
    where = urlsplit(url)
    assert where.hostname is not None
    assert where.port is not None
    opened: list[socket.socket] = []

    def connect() -> None:
        for _ in range(count):
            with suppress(OSError):
                opened.append(socket.create_connection((where.hostname, where.port), timeout=10))

    try:
        await asyncio.to_thread(connect)
        await until.wait()
    finally:
        for connection in opened:
            connection.close()
    return len(opened)


async def test_idle_connections_are_let_go_and_slow_nobody(faked: Daemon, key: str) -> None:
    faked.script(token_s=0.0)
    faked.start()
    await asyncio.to_thread(faked.until_serving)
    process = psutil.Process(faked.pid)
    assert await asyncio.to_thread(ask, faked, key) == 200
    before = process.num_fds()
    done = asyncio.Event()
    crowd = asyncio.create_task(stand_idle(await asyncio.to_thread(lambda: faked.url), IDLE, done))
    await asyncio.to_thread(faked.until, lambda: process.num_fds() >= before + IDLE, 60)
    begun = time.monotonic()
    for _ in range(5):
        assert await asyncio.to_thread(ask, faked, key) == 200
    assert time.monotonic() - begun < 10
    # a connection that says nothing is closed after the time a request's head may take
    await asyncio.to_thread(faked.until, lambda: process.num_fds() <= before + 8, 60)
    done.set()
    assert await crowd == IDLE


async def test_daemon_without_file_descriptors_recovers(faked: Daemon, key: str) -> None:
    faked.script(token_s=0.0)
    faked.start()
    await asyncio.to_thread(faked.until_serving)
    assert await asyncio.to_thread(ask, faked, key) == 200
    process = psutil.Process(faked.pid)
    url = await asyncio.to_thread(lambda: faked.url)
    before = process.num_fds()
    soft, hard = process.rlimit(psutil.RLIMIT_NOFILE)
    process.rlimit(psutil.RLIMIT_NOFILE, (before + 20, hard))
    done = asyncio.Event()
    crowd = asyncio.create_task(stand_idle(url, 80, done))
    await asyncio.to_thread(faked.until, lambda: process.num_fds() >= before + 18, 30)
    await asyncio.sleep(1)
    assert process.is_running()
    assert faked.process is not None
    assert faked.process.poll() is None
    done.set()  # the crowd leaves; nothing else is done for the daemon
    await crowd
    await asyncio.to_thread(faked.until, lambda: process.num_fds() <= before + 8, 60)
    assert await asyncio.to_thread(ask, faked, key) == 200
    worker = await asyncio.to_thread(faked.worker)
    assert worker["state"] == "ready"
    assert worker["restarts"] == 0
    process.rlimit(psutil.RLIMIT_NOFILE, (soft, hard))
