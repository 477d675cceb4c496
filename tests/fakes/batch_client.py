"""A client of files and batches, and a runner beside fake services."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai

from daemon.api.batches.running import build_runner
from daemon.batches.runner import BatchRunner
from tests.fakes.fake_services import MODEL, FakeServices

CHAT = "/v1/chat/completions"
OVER = ("completed", "failed", "expired", "cancelled")


def line(number: int, **body: Any) -> dict[str, Any]:
    asked = {"model": MODEL, "messages": [{"role": "user", "content": f"hi {number}"}], "max_tokens": 5, **body}
    return {"custom_id": f"r{number}", "method": "POST", "url": CHAT, "body": asked}


def jsonl(*given: Any) -> bytes:
    return "".join(json.dumps(one) + "\n" for one in given).encode()


@asynccontextmanager
async def running(services: FakeServices) -> AsyncIterator[BatchRunner]:
    runner = build_runner(services)
    await runner.start()
    try:
        yield runner
    finally:
        await runner.stop()


async def begin(client: openai.AsyncOpenAI, *given: Any, endpoint: Any = CHAT) -> Any:
    file = await client.files.create(file=("in.jsonl", jsonl(*given)), purpose="batch")
    return await client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h")


async def ended(client: openai.AsyncOpenAI, batch_id: str, within_s: float = 10.0) -> Any:
    async with asyncio.timeout(within_s):
        while (batch := await client.batches.retrieve(batch_id)).status not in OVER:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return batch


async def answers(client: openai.AsyncOpenAI, file_id: str | None) -> dict[str, Any]:
    if file_id is None:
        return {}
    read = [json.loads(one) for one in (await client.files.content(file_id)).text.splitlines()]
    found = {one["custom_id"]: one for one in read}
    assert len(found) == len(read)
    return found
