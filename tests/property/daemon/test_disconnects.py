"""Clients that close whenever they like, on every generating route, in every state: nothing of them is left."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from pathlib import Path
from typing import Any

import pytest

from daemon.api.http import build_app
from daemon.tenants.limits import TenantLimits
from tests.fakes.fake_services import MODEL, FakeServices, fake_services, http_server

HI = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "look"}}
BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": HI}),
    ("/v1/chat/completions", {"messages": HI, "n": 3}),
    ("/v1/chat/completions", {"messages": HI, "tools": [TOOL], "tool_choice": "required"}),
    ("/v1/completions", {"prompt": ["a", "b"], "max_tokens": 200, "echo": True}),
    ("/v1/responses", {"input": "hi"}),
]
CLIENTS = 80


async def visit(url: str, key: str, chance: random.Random) -> None:
    """One request whose client reads a little, or nothing, and closes."""
    path, fields = chance.choice(BODIES)
    stream = chance.random() < 0.7
    payload = json.dumps({"model": MODEL, **fields, "stream": stream}).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nX-Api-Key: {key}\r\nContent-Type: application/json\r\n"
    whole = f"{head}Content-Length: {len(payload)}\r\n\r\n".encode() + payload
    await asyncio.sleep(chance.random() * 0.3)
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
    with contextlib.suppress(OSError):
        cut = chance.random() < 0.1  # within the request itself
        writer.write(whole[: chance.randrange(len(whole))] if cut else whole)
        await writer.drain()
        if chance.random() < 0.5:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(reader.read(chance.randrange(1, 2000)), chance.random() * 0.4)
        else:
            await asyncio.sleep(chance.random() * 0.4)
        if chance.random() < 0.5:
            writer.transport.abort()  # a reset, not a polite end
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


@pytest.mark.parametrize("seed", range(3))
async def test_clients_that_close_at_random_leave_nothing(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    async with fake_services(tmp_path) as services:
        services.engine.token_s = 0.01
        key = await services.new_key("busy", TenantLimits(max_concurrency=12))
        tasks_before = len(asyncio.all_tasks())
        app = build_app(services)
        async with http_server(app, lifespan="off") as url:
            await asyncio.gather(*(visit(url, key, random.Random(chance.random())) for _ in range(CLIENTS)))
            await services.freed(3.0)
            assert services.tenants.admission.waiting == 0
            assert len(app.keeper) == 0
            assert sum(outcomes(services).values()) <= CLIENTS
        await settled(tasks_before)


def outcomes(services: FakeServices) -> dict[str, float]:
    lines = [line for line in services.metrics.render().decode().splitlines() if "bayard_requests_total{" in line]
    return {line.split('outcome="')[1].split('"')[0]: float(line.rsplit(" ", 1)[1]) for line in lines}


async def settled(tasks: int) -> None:
    """Fails unless, soon, no more tasks are there than before."""
    async with asyncio.timeout(3.0):
        while len(asyncio.all_tasks()) > tasks:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
