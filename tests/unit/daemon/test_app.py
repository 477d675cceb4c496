"""The appliance in this process: started in order, stopped whole, whatever fails on the way."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import httpx
import psutil
import pytest

from daemon.app import Appliance, ApplianceState
from daemon.settings import Settings
from daemon.settings_load import load_settings
from daemon.store.lock import StateLock, lock_holder
from engine.errors import BayardError, ConfigError


@pytest.fixture
def settings(short_dir: Path) -> Settings:
    return load_settings(None, {}, {"state_dir": short_dir, "http.port": 0, "grpc.port": 0})


def helpers() -> list[int]:
    children = psutil.Process().children()
    return [child.pid for child in children if "daemon.workers.spawn_helper" in child.cmdline()]


async def test_started_appliance_answers_and_stops_whole(settings: Settings) -> None:
    appliance = Appliance(settings)
    await appliance.start()
    try:
        assert appliance.state is ApplianceState.SERVING
        assert appliance.status_line().startswith("no model loaded; listening on http://127.0.0.1:")
        async with httpx.AsyncClient(trust_env=False) as client:
            assert (await client.get(f"{appliance.http_address}/healthz")).status_code == 200
    finally:
        await appliance.stop()
    await appliance.stop()
    assert appliance.state is ApplianceState.STOPPED
    assert helpers() == []
    assert lock_holder(settings.state_dir) is None
    assert not settings.admin_socket.exists()
    kinds = [(event.from_state, event.to_state) for event in appliance.events.recent() if event.kind == "appliance"]
    assert kinds == [("starting", "serving"), ("serving", "draining"), ("draining", "stopped")]


async def test_start_that_fails_leaves_nothing(short_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = load_settings(None, {}, {"state_dir": short_dir, "http.port": 0, "grpc.port": port})
        appliance = Appliance(settings)
        with pytest.raises(ConfigError, match=f"port {port}"):
            await appliance.start()
    assert helpers() == []
    assert lock_holder(short_dir) is None
    assert not settings.admin_socket.exists()


def test_constructor_that_fails_leaves_nothing(settings: Settings) -> None:
    with StateLock.acquire(settings.state_dir):
        settings.database_file.write_bytes(b"no database" * 100)
    with pytest.raises(BayardError, match="is damaged"):
        Appliance(settings)
    assert helpers() == []
    assert lock_holder(settings.state_dir) is None


async def test_server_that_ends_by_itself_ends_the_daemon(settings: Settings) -> None:
    appliance = Appliance(settings)
    running = asyncio.create_task(appliance.run())
    while appliance.state is not ApplianceState.SERVING:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert appliance.http is not None
    appliance.http.task.cancel()
    with pytest.raises(BayardError, match="the task 'server http' ended"):
        await asyncio.wait_for(running, 20)
    assert appliance.state is ApplianceState.STOPPED
    assert helpers() == []


async def test_part_whose_stop_breaks_keeps_no_other_from_its_end(settings: Settings) -> None:
    appliance = Appliance(settings)
    await appliance.start()

    async def cancelled() -> None:
        raise asyncio.CancelledError

    async def fails() -> None:
        raise RuntimeError("no end")

    appliance.at_stop("odd", cancelled)
    appliance.at_stop("broken", fails)
    appliance.runner.stop = fails  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="no end"):
        await appliance.stop()
    assert appliance.state is ApplianceState.STOPPED
    assert helpers() == []
    assert lock_holder(settings.state_dir) is None


async def test_nothing_grows_over_many_starts(settings: Settings) -> None:
    process = psutil.Process()
    counts = []
    for _ in range(6):
        appliance = Appliance(settings)
        await appliance.start()
        await appliance.stop()
        counts.append((process.num_fds(), len(asyncio.all_tasks())))
    assert counts[-1][0] <= counts[2][0]
    assert counts[-1][1] <= counts[2][1]
