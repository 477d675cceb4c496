"""256 streams at once by four doors, a tenth of whose clients leave at random: no request and no task stays behind."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import grpc
import httpx
from grpc import aio

from daemon.api.grpc.gen import bayard_pb2 as pb
from daemon.api.grpc.gen import bayard_pb2_grpc as stubs
from daemon.api.grpc.server import build_server
from daemon.api.http import PublicApp
from tests.fakes.fake_services import MODEL, FakeServices, http_server

STREAMS = 256
HI = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": MODEL, "messages": HI, "stream": True},
    "/v1/messages": {"model": MODEL, "messages": HI, "stream": True, "max_tokens": 100},
    "/api/chat": {"model": MODEL, "messages": HI},
}
Patience = int | None  # pieces after which the client leaves; None: it stays


async def by_http(http: httpx.AsyncClient, path: str, patience: Patience) -> str:
    seen = 0
    async with http.stream("POST", path, json=BODIES[path]) as response:
        assert response.status_code == 200
        async for _ in response.aiter_lines():
            seen += 1
            if patience is not None and seen > patience:
                return "left"
    return "done"


async def by_grpc(stub: stubs.InferenceStub, key: str, patience: Patience) -> str:
    request = pb.ChatRequest(model=MODEL, messages=[pb.Message(role="user", content="hi")])
    call = stub.Chat(request, metadata=(("x-api-key", key),), timeout=0.02 if patience == 0 else None)
    seen = 0
    try:
        async for delta in call:
            seen += 1
            if delta.HasField("finished"):
                return "done"
            if patience is not None and seen > patience:
                call.cancel()
                return "left"
    except aio.AioRpcError as error:
        return "left" if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED else str(error.code())
    return "cut"


async def test_clients_that_leave_leave_no_task(services: FakeServices) -> None:
    services.engine.token_s = 0.002
    dice = random.Random(5)
    app = PublicApp(services)
    before = asyncio.all_tasks()
    server = build_server(services)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with http_server(app, lifespan="off") as url:
        standing = len(asyncio.all_tasks())
        limits = httpx.Limits(max_connections=STREAMS)
        async with (
            httpx.AsyncClient(
                base_url=url, headers={"x-api-key": services.key}, limits=limits, timeout=60, trust_env=False
            ) as http,
            aio.insecure_channel(f"127.0.0.1:{port}") as channel,
        ):
            stub = stubs.InferenceStub(channel)
            doors: list[Callable[[Patience], Coroutine[Any, Any, str]]] = [
                lambda patience, path=path: by_http(http, path, patience)  # type: ignore[misc]
                for path in BODIES
            ]
            doors.append(lambda patience: by_grpc(stub, services.key, patience))
            asks = [
                doors[number % len(doors)](dice.randrange(8) if dice.random() < 0.1 else None)
                for number in range(STREAMS)
            ]
            ends = Counter(await asyncio.gather(*asks))
        assert set(ends) == {"done", "left"}
        assert 10 <= ends["left"] <= 50
        await services.freed(5.0)
        assert len(app.keeper) == 0
        async with asyncio.timeout(5):
            while len(asyncio.all_tasks()) > standing:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    await server.stop(None)
    async with asyncio.timeout(5):
        while asyncio.all_tasks() - before:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
