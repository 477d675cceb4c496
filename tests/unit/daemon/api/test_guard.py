"""The head of a request is bounded before it is buffered; what is no HTTP gets the usual error."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from daemon.api.connections import RESERVED_FILES, Connections, open_files_limit
from daemon.api.guard import MAX_HEAD_BYTES, GuardedProtocol, guarded
from daemon.api.http import build_app
from tests.fakes.fake_services import MODEL, FakeServices, http_server


class HastyProtocol(GuardedProtocol):
    head_timeout_s = 0.2


@pytest.fixture
async def url(services: FakeServices) -> AsyncIterator[str]:
    async with http_server(build_app(services), http=HastyProtocol) as made:
        yield made


async def send(url: str, *pieces: bytes, pause_s: float = 0.0) -> tuple[int, dict[str, Any]]:
    """The status and error of the answer; status 0 where the connection closed without one."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause_s)
        answer = await asyncio.wait_for(reader.read(), 5)
    except ConnectionError:
        return 0, {}
    finally:
        writer.close()
    if not answer:
        return 0, {}
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]


async def test_long_target_is_refused(url: str) -> None:
    status, error = await send(url, b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (status, error["code"], error["type"]) == (431, "headers_too_large", "invalid_request_error")


async def test_many_headers_are_refused(url: str) -> None:
    head = b"GET / HTTP/1.1\r\n" + b"".join(b"x-%d: 1\r\n" % number for number in range(101)) + b"\r\n"
    status, error = await send(url, head)
    assert (status, error["code"]) == (431, "headers_too_large")


async def test_endless_header_is_refused(url: str) -> None:
    status, error = await send(url, b"GET / HTTP/1.1\r\nx: ", b"a" * (MAX_HEAD_BYTES - 18), b"aa", pause_s=0.02)
    assert (status, error["code"]) == (431, "headers_too_large")


async def test_slow_head_and_silent_connection_are_closed(url: str) -> None:
    assert await send(url, b"GET / HTTP/1.1\r\n", *[b"x: 1\r\n"] * 5, pause_s=0.1) == (0, {})
    assert await send(url) == (0, {})


async def test_what_is_no_http_is_refused_in_the_usual_shape(url: str) -> None:
    status, error = await send(url, b"\x16\x03\x01 hello there\r\n\r\n")
    assert (status, error["code"]) == (400, "invalid_http")
    both = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
    status, error = await send(url, both)
    assert (status, error["code"]) == (400, "invalid_http")


async def test_kept_connection_serves_bodies_larger_than_a_head(url: str, services: FakeServices) -> None:
    async with httpx.AsyncClient(base_url=url, headers={"x-api-key": services.key}, trust_env=False) as http:
        for _ in range(3):
            response = await http.post("/v1/chat/completions", json={"user": "x" * 100_000})
            assert response.json()["error"]["param"] == "model"
            await asyncio.sleep(0.25)  # longer than a head may take


@pytest.fixture
async def small(services: FakeServices) -> AsyncIterator[tuple[str, Connections]]:
    bound = Connections(3)
    async with http_server(build_app(services), http=guarded(bound)) as made:
        yield made, bound


async def opened(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))


async def test_idle_connection_makes_room_and_busy_ones_stay(
    small: tuple[str, Connections], services: FakeServices
) -> None:
    url, bound = small
    services.engine.hold = asyncio.Event()
    body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {services.key}\r\n"
    request = f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
    busy = [await opened(url) for _ in range(2)]
    for _, writer in busy:
        writer.write(request)
    async with asyncio.timeout(5):
        while len(services.engine.open) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    idle = [await opened(url) for _ in range(4)]
    for reader, _ in idle[:3]:
        assert await asyncio.wait_for(reader.read(), 5) == b"", "the one that was idle longest made room"
    assert (len(bound), bound.idle, bound.evicted, bound.refused) == (3, 1, 3, 0)
    idle[3][1].write(request)
    async with asyncio.timeout(5):
        while len(services.engine.open) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    status, error = await send(url, b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
    assert (status, error["code"]) == (503, "too_many_connections")
    services.engine.hold.set()
    for reader, _ in [*busy, idle[3]]:
        assert (await asyncio.wait_for(reader.readuntil(b"\r\n"), 5)).split()[1] == b"200"
    async with asyncio.timeout(5):
        while bound.idle < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    for _, writer in [*busy, *idle]:
        writer.close()
    async with asyncio.timeout(5):
        while len(bound):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def test_bound_leaves_files_for_the_rest_of_the_daemon() -> None:
    assert Connections(10**9).most == open_files_limit() - RESERVED_FILES
    assert Connections(7).most == 7
