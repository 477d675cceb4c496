"""A real worker that gives its memory back and takes it again."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import psutil
import pytest

from engine.client import EngineClient
from engine.errors import WorkerLost
from engine.messages import FinishReason, Knobs, Submit
from tests.unit.engine.test_client_and_worker import PROMPT, collect, greedy, until, worker_on

POOL_TOKENS = 2048
LONG = [1 + n % 4000 for n in range(300)]


def rss(pid: int) -> int:
    return psutil.Process(pid).memory_info().rss


async def test_sleep_gives_the_pool_back_and_waking_gives_the_same_tokens(smollm_path: Path, tmp_path: Path) -> None:
    knobs = Knobs(max_running=16)
    async with worker_on(smollm_path, tmp_path, kv_tokens=POOL_TOKENS, knobs=knobs) as (client, process):
        await asyncio.wait_for(client.ready, 60)
        before, _ = await collect(client, Submit("a", PROMPT, greedy(8)))
        prompts = [[n, *LONG] for n in range(2, 8)]  # fills most of the pool
        await asyncio.gather(*(collect(client, Submit(f"fill{n}", p, greedy(2))) for n, p in enumerate(prompts)))
        assert client.stats.kv_pages_cached > 90
        awake = rss(process.pid)

        running = asyncio.create_task(collect(client, Submit("cut", PROMPT, greedy(400))))
        await until(lambda: client.stats.running == 1)
        slept = await asyncio.wait_for(client.sleep(), 10)
        assert slept.error is None
        assert slept.pool_bytes > 40 << 20
        assert (await running)[1] == [FinishReason.ABORT]
        fallen = awake - rss(process.pid)
        assert fallen > 0.6 * slept.pool_bytes, (fallen, slept)  # the pages that were touched, and what steps took
        beat = client.stats.beat
        await until(lambda: client.stats.beat > beat + 1)
        refused = [delta async for delta in client.submit(Submit("early", PROMPT, greedy(2)))]
        assert [(delta.finish, delta.error.code) for delta in refused] == [(FinishReason.ERROR, "not_ready")]

        began = time.monotonic()
        woken = await asyncio.wait_for(client.wake(), 10)
        assert woken.error is None
        assert woken.graphs_kept
        after, ends = await collect(client, Submit("b", PROMPT, greedy(8)))
        assert time.monotonic() - began < 2.0
        assert (after, ends) == (before, [FinishReason.LENGTH])
        again, _ = await collect(client, Submit("c", prompts[3], greedy(2)))
        assert len(again) == 2
        assert (await client.wake()).error is None, "one that is awake says so again"


async def test_sleeping_worker_that_is_lost_ends_who_waits_for_it(tmp_path: Path) -> None:
    client = EngineClient(f"ipc://{tmp_path}/nobody.sock")
    await client.start()
    with pytest.raises(WorkerLost):
        await asyncio.wait_for(client.sleep(), 2)
    await client.close()
