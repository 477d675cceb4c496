"""However a request ends, it ends once, its client is told at most once, and nothing of it stays behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest

from daemon.api.http import PublicApp
from daemon.api.sse import StreamKeeper
from daemon.tenants.limits import TenantLimits
from tests.fakes.fake_engine import FakeEngine
from tests.fakes.fake_services import MODEL, FakeServices, add_replica, http_server

CHAT = "/v1/chat/completions"


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], **fields}


async def outcomes(services: FakeServices) -> dict[str, float]:
    """Requests counted by how they ended."""
    lines = [line for line in services.metrics.render().decode().splitlines() if "bayard_requests_total{" in line]
    return {line.split('outcome="')[1].split('"')[0]: float(line.rsplit(" ", 1)[1]) for line in lines}


@contextlib.asynccontextmanager
async def raw_request(base_url: str, key: str, body: dict[str, Any]) -> AsyncIterator[tuple[Any, Any]]:
    """A bare socket, so that the test says when it reads and when it closes."""
    payload = json.dumps(body).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", int(base_url.rsplit(":", 1)[1]), limit=2**16)
    writer.write(head.encode() + f"Content-Length: {len(payload)}\r\n\r\n".encode() + payload)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


@pytest.mark.parametrize("stream", [False, True])
async def test_disconnect_before_the_first_token_aborts(base_url: str, services: FakeServices, stream: bool) -> None:
    services.engine.hold = asyncio.Event()
    async with raw_request(base_url, services.key, chat(stream=stream)):
        await until(lambda: bool(services.engine.open))
    await services.freed()
    assert len(services.engine.aborted) == 1
    assert await outcomes(services) == {"abort": 1.0}


async def test_disconnect_while_decoding_a_stream_aborts(base_url: str, services: FakeServices) -> None:
    services.engine.token_s = 0.01
    async with raw_request(base_url, services.key, chat(stream=True, ignore_eos=True)) as (reader, _):
        for _ in range(3):
            await reader.readuntil(b"\n\n")
    await services.freed()
    assert len(services.engine.aborted) == 1


async def test_disconnect_while_decoding_unstreamed_aborts(base_url: str, services: FakeServices) -> None:
    services.engine.token_s = 0.01
    async with raw_request(base_url, services.key, chat(ignore_eos=True)):
        await until(lambda: any(live.output_tokens for live in services.serving.live.all()))
    await services.freed()
    assert len(services.engine.aborted) == 1


async def test_disconnect_of_several_choices_aborts_each(base_url: str, services: FakeServices) -> None:
    services.engine.hold = asyncio.Event()
    async with raw_request(base_url, services.key, chat(stream=True, n=3)):
        await until(lambda: len(services.engine.open) == 3)
    await services.freed()
    assert len(services.engine.aborted) == 3


async def test_disconnect_while_waiting_at_the_door_leaves_the_queue(base_url: str, services: FakeServices) -> None:
    services.engine.hold = asyncio.Event()
    key = await services.new_key("one", TenantLimits(max_concurrency=1))
    async with raw_request(base_url, key, chat(stream=True)):
        await until(lambda: bool(services.engine.open))
        async with raw_request(base_url, key, chat(stream=True)):
            await until(lambda: services.tenants.admission.waiting == 1)
        await until(lambda: services.tenants.admission.waiting == 0)
        assert len(services.engine.submitted) == 1
    await services.freed()


async def test_worker_failure_mid_stream_is_one_error_and_no_done(
    http: httpx.AsyncClient, services: FakeServices
) -> None:
    services.engine.fail_after = 3
    response = await http.post(CHAT, json=chat(stream=True))
    events = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert [("error" in json.loads(event)) for event in events] == [False] * (len(events) - 1) + [True]
    assert json.loads(events[-1])["error"]["code"] == "worker_lost"
    assert await outcomes(services) == {"worker_lost": 1.0}
    await services.freed()


async def test_worker_failure_mid_stream_raises_in_the_client(
    client: openai.AsyncOpenAI, services: FakeServices
) -> None:
    services.engine.fail_after = 3
    stream = await client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "hi"}], stream=True
    )
    with pytest.raises(openai.APIError, match="The worker is gone"):
        await drain(stream)


@pytest.mark.parametrize("stream", [False, True])
async def test_worker_failure_before_the_first_token_keeps_its_status(
    http: httpx.AsyncClient, services: FakeServices, stream: bool
) -> None:
    services.engine.fail_after = 0
    response = await http.post(CHAT, json=chat(stream=stream))
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "worker_lost"
    assert "retry-after" in response.headers


async def test_one_failing_choice_ends_all(http: httpx.AsyncClient, services: FakeServices) -> None:
    services.engine.fail_after = 2
    response = await http.post(CHAT, json=chat(n=2))
    assert response.status_code == 503
    assert await outcomes(services) == {"worker_lost": 1.0}
    await services.freed()


@pytest.mark.parametrize("stream", [False, True])
async def test_operator_cancel_while_decoding_is_told_to_the_client(
    http: httpx.AsyncClient, services: FakeServices, stream: bool
) -> None:
    services.engine.token_s = 0.01
    asking = asyncio.create_task(http.post(CHAT, json=chat(stream=stream, ignore_eos=True)))
    await until(lambda: any(live.output_tokens for live in services.serving.live.all()))
    (live,) = services.serving.live.all()
    await services.serving.live.cancel(live.id)
    response = await asking
    assert '"code":"cancelled"' in response.text
    assert "[DONE]" not in response.text
    await services.freed()


async def test_operator_cancel_at_the_door_is_told_to_the_client(base_url: str, services: FakeServices) -> None:
    services.engine.hold = asyncio.Event()
    key = await services.new_key("one", TenantLimits(max_concurrency=1))
    async with httpx.AsyncClient(base_url=base_url, headers={"x-api-key": key}, trust_env=False) as http:
        first = asyncio.create_task(http.post(CHAT, json=chat()))
        await until(lambda: bool(services.engine.open))
        second = asyncio.create_task(http.post(CHAT, json=chat()))
        await until(lambda: services.tenants.admission.waiting == 1)
        await services.serving.live.cancel(services.serving.live.all()[1].id)
        assert (await second).json()["error"]["code"] == "cancelled"
        services.engine.hold.set()
        assert (await first).status_code == 200
    await services.freed()


async def test_long_wait_is_filled_with_comments_and_completes(services: FakeServices) -> None:
    services.engine.hold = asyncio.Event()
    app = PublicApp(services, StreamKeeper(comment_after_s=0.05))
    async with http_server(app) as url:
        client = openai.AsyncOpenAI(base_url=url + "/v1", api_key=services.key)
        async with client, raw_request(url, services.key, chat(stream=True)) as (reader, _):
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200")
            for _ in range(2):
                assert b": ka" in await reader.readuntil(b"\n\n")
            asking = asyncio.create_task(
                client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "hi"}], stream=True)
            )
            await until(lambda: len(services.engine.open) == 2)
            await asyncio.sleep(0.15)
            services.engine.hold.set()
            assert b"[DONE]" in await reader.readuntil(b"[DONE]")
            assert "".join(await drain(await asking)) == "Hello there, Paris!"
    assert len(app.keeper) == 0


async def test_reader_that_stops_reading_is_dropped_and_slows_nobody(services: FakeServices) -> None:
    endless = FakeEngine(reply="x" * 20_000, burst=20_000)
    add_replica(services.router, "endless", endless, max_context_tokens=2**31)
    app = PublicApp(services, StreamKeeper(stalled_after_s=0.3))
    body = {**chat(stream=True, ignore_eos=True), "model": "endless"}
    async with http_server(app) as url, httpx.AsyncClient(base_url=url, trust_env=False, timeout=10) as http:
        async with raw_request(url, services.key, body):
            await until(lambda: bool(endless.open))
            answer = await http.post(CHAT, json=chat(max_tokens=3), headers={"x-api-key": services.key})
            assert answer.status_code == 200
            await until(lambda: bool(endless.aborted), 10.0)
        await services.freed()


async def test_two_hundred_requests_at_once_end_once_each(base_url: str, services: FakeServices) -> None:
    services.engine.token_s = 0.001
    limits = httpx.Limits(max_connections=200)
    headers = {"x-api-key": services.key}
    async with httpx.AsyncClient(
        base_url=base_url, headers=headers, limits=limits, timeout=60, trust_env=False
    ) as http:

        async def ask(number: int) -> str:
            response = await http.post(CHAT, json=chat(stream=number % 2 == 0, max_tokens=5 + number % 20))
            if number % 2:
                return str(response.json()["choices"][0]["finish_reason"])
            assert response.text.count("data: [DONE]") == 1
            reasons = [
                reason
                for line in response.text.split("\n\n")
                if line.startswith("data: {")
                for choice in json.loads(line[6:])["choices"]
                if (reason := choice["finish_reason"])
            ]
            assert len(reasons) == 1
            return str(reasons[0])

        ends = Counter(await asyncio.gather(*(ask(number) for number in range(200))))
    assert sum(ends.values()) == 200
    assert set(ends) == {"stop", "length"}
    await services.freed()
    counted = await outcomes(services)
    assert counted == {reason: float(count) for reason, count in ends.items()}
    assert services.engine.aborted == []


async def test_draining_refuses_new_requests_and_finishes_running_ones(
    http: httpx.AsyncClient, services: FakeServices
) -> None:
    services.engine.hold = asyncio.Event()
    asking = asyncio.create_task(http.post(CHAT, json=chat(stream=True)))
    await until(lambda: bool(services.engine.open))
    services.tenants.admission.draining = True
    refused = await http.post(CHAT, json=chat())
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
    assert (await http.get("/readyz")).status_code == 503
    assert (await http.get("/healthz")).status_code == 200
    services.engine.hold.set()
    assert "[DONE]" in (await asking).text


async def until(condition: Any, within_s: float = 5.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def drain(stream: Any) -> list[str]:
    return [chunk.choices[0].delta.content or "" async for chunk in stream]
