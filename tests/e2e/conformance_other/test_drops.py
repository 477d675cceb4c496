"""256 streams at once over HTTP and as many over gRPC, a tenth of whose clients leave at random: nothing stays behind.

With BAYARD_TEST_DROPS=real the real model answers instead of the fake worker; that takes minutes.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import grpc
import httpx
import psutil
import pytest

from daemon.api.grpc.gen import bayard_pb2 as pb
from daemon.api.grpc.gen import bayard_pb2_grpc as stubs
from tests.e2e.conformance_other.conftest import MODEL, Served, idle
from tests.e2e.daemon.conftest import FAKE, Daemon

REAL = os.environ.get("BAYARD_TEST_DROPS") == "real"
STREAMS = 256
TOKENS = 8 if REAL else 40


@pytest.fixture
def crowd(request: pytest.FixtureRequest, daemon_of_fakes: Served) -> Served:
    if not REAL:
        return daemon_of_fakes
    found: Served = request.getfixturevalue("served")
    return found


@pytest.fixture
def daemon_of_fakes(smollm_path: Path) -> Iterator[Served]:
    with tempfile.TemporaryDirectory(prefix="bd-") as folder:
        daemon = Daemon(Path(folder), {"BAYARD_WORKERS_COMMAND": FAKE, "BAYARD_LIMITS_MAX_QUEUE": "1000"})
        daemon.script(token_s=0.02)
        daemon.command("models", "import", str(smollm_path), "--name", MODEL, "--link")
        daemon.command("tenants", "create", "demo")
        found = re.search(r"bk_live_\S+", daemon.command("keys", "create", "--tenant", "demo").stdout)
        assert found is not None
        try:
            daemon.start()
            daemon.until_serving()
            status = daemon.admin("status")
            yield Served(daemon, status["http"], status["grpc"], found.group(), None)
        finally:
            daemon.stop()


async def by_http(served: Served, client: httpx.AsyncClient, leaves_after: int | None) -> str:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": TOKENS, "stream": True,
            "ignore_eos": True}  # fmt: skip
    seen = 0
    if leaves_after == 0:
        try:
            await client.post("/v1/chat/completions", json=body, timeout=0.05)
        except httpx.TimeoutException:
            return "left"
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        assert response.status_code == 200
        async for line in response.aiter_lines():
            if line == "data: [DONE]":
                return "done"
            if line.startswith("data: "):
                assert "error" not in json.loads(line[6:])
                seen += 1
                if leaves_after is not None and seen > leaves_after:
                    return "left"
    return "cut"


async def by_grpc(served: Served, stub: stubs.InferenceStub, leaves_after: int | None) -> str:
    request = pb.ChatRequest(
        model=MODEL, messages=[pb.Message(role="user", content="hi")], max_tokens=TOKENS, ignore_eos=True
    )
    call = stub.Chat(request, metadata=served.metadata, timeout=0.05 if leaves_after == 0 else None)
    seen = 0
    try:
        async for delta in call:
            if delta.HasField("finished"):
                return "done"
            seen += 1
            if leaves_after is not None and seen > leaves_after:
                call.cancel()
                return "left"
    except grpc.aio.AioRpcError as error:
        return "left" if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED else f"failed: {error.code()}"
    return "cut"


async def crowd_of(served: Served, seed: int) -> Counter[str]:
    dice = random.Random(seed)

    def patience() -> int | None:
        return dice.randrange(0, 10) if dice.random() < 0.1 else None

    limits = httpx.Limits(max_connections=STREAMS)
    headers = {"x-api-key": served.key}
    async with (
        httpx.AsyncClient(base_url=served.url, headers=headers, limits=limits, timeout=300, trust_env=False) as client,
        grpc.aio.insecure_channel(served.target) as channel,
    ):
        stub = stubs.InferenceStub(channel)
        ends = [by_http(served, client, patience()) for _ in range(STREAMS)]
        ends += [by_grpc(served, stub, patience()) for _ in range(STREAMS)]
        return Counter(await asyncio.gather(*ends))


@pytest.mark.timeout(900)
def test_clients_that_leave_leave_nothing_behind(crowd: Served) -> None:
    process = psutil.Process(crowd.daemon.pid)
    before = None
    for seed in range(1 if REAL else 2):
        ends = asyncio.run(crowd_of(crowd, seed))
        assert ends["cut"] == 0
        assert ends["done"] + ends["left"] == 2 * STREAMS
        assert 20 <= ends["left"] <= 90
        idle(crowd.daemon, 5.0)
        counts = (process.num_threads(), process.num_fds())
        if before is not None:  # the first crowd may have made threads and connections that are kept
            assert counts[0] <= before[0] + 2
            assert counts[1] <= before[1] + 10
        before = counts
    assert not [line for line in crowd.daemon.log.splitlines() if "broke" in line or "Traceback" in line]
