"""Files and batches through the official client: run when idle, once each, over restarts, within one tenant."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import openai
import pytest
from sqlalchemy import delete

from daemon.api.http import build_app
from daemon.batches import lines
from daemon.batches.run import PRIORITY
from daemon.settings import BatchSettings
from daemon.store.base import utc_now
from daemon.store.schema import Tenant
from daemon.tenants.limits import TenantLimits
from engine.messages import Submit, TokenDelta
from tests.fakes.batch_client import CHAT, answers, begin, ended, jsonl, line, running
from tests.fakes.fake_engine import FakeEngine
from tests.fakes.fake_services import MODEL, TESTER, FakeServices, add_replica, fake_services, http_server


async def test_batch_runs_every_line_once_and_below_all_others(
    client: openai.AsyncOpenAI, services: FakeServices
) -> None:
    async with running(services):
        batch = await begin(client, *(line(number) for number in range(20)), line(20, temperature=9))
        assert (batch.status, batch.output_file_id) == ("validating", None)
        done = await ended(client, batch.id)
    assert done.status == "completed"
    assert (done.request_counts.total, done.request_counts.completed, done.request_counts.failed) == (21, 20, 1)
    good, bad = await answers(client, done.output_file_id), await answers(client, done.error_file_id)
    assert {int(one[1:]) for one in good} == set(range(20))
    for one in good.values():
        assert one["response"]["status_code"] == 200
        assert one["response"]["body"]["choices"][0]["message"]["content"] == "Hello"
    assert bad["r20"]["response"]["status_code"] == 400
    assert bad["r20"]["response"]["body"]["error"]["param"] == "temperature"
    assert {submitted.priority for submitted in services.engine.submitted} == {PRIORITY}
    assert services.engine.peak_open <= services.settings.batches.parallel
    assert done.in_progress_at <= done.finalizing_at <= done.completed_at
    files = [file async for file in client.files.list()]
    assert {file.purpose for file in files} == {"batch", "batch_output"}


async def test_batch_of_embeddings(client: openai.AsyncOpenAI, services: FakeServices) -> None:
    add_replica(services.router, "embedder", FakeEngine(), dimensions=8)
    asked = {"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": {"model": "embedder", "input": "x"}}
    async with running(services):
        batch = await ended(client, (await begin(client, asked, endpoint="/v1/embeddings")).id)
    assert batch.status == "completed", batch.errors
    found = await answers(client, batch.output_file_id)
    assert len(found["a"]["response"]["body"]["data"][0]["embedding"]) == 8


async def test_line_that_breaks_is_that_lines_error_alone(
    client: openai.AsyncOpenAI, services: FakeServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault of ours below a line, with one choice or several."""
    ordinary = services.engine.submit

    async def submit(asked: Submit) -> AsyncIterator[TokenDelta]:
        if asked.sampling.top_k == 666:
            raise OverflowError("a fault of ours")
        async for delta in ordinary(asked):
            yield delta

    monkeypatch.setattr(services.engine, "submit", submit)
    broken = [line(number, top_k=666, n=1 + number % 2) for number in range(2)]
    async with running(services):
        done = await ended(client, (await begin(client, *broken, line(100), line(101))).id)
    assert (done.status, done.request_counts.completed) == ("completed", 2), done.errors
    bad = await answers(client, done.error_file_id)
    assert len(bad) == len(broken)
    for one in bad.values():
        assert one["response"]["status_code"] == 500
        assert one["response"]["body"]["error"]["code"] == "internal_error"


@pytest.mark.parametrize(
    ("given", "code", "at"),
    [
        (b"\n", "empty_file", None),
        (b"{", "invalid_request", 1),
        (jsonl(line(0), {**line(1), "method": "GET"}), "invalid_method", 2),
        (jsonl({**line(0), "url": "/v1/completions"}), "invalid_url", 1),
        (jsonl(line(0), line(0)), "duplicate_custom_id", 2),
        (jsonl(line(0, stream=True)), "invalid_request", 1),
        (jsonl({**line(0), "custom_id": ""}), "invalid_request", 1),
    ],
)
async def test_wrong_file_fails_the_batch_before_anything_runs(
    client: openai.AsyncOpenAI, services: FakeServices, given: bytes, code: str, at: int | None
) -> None:
    file = await client.files.create(file=("in.jsonl", given), purpose="batch")
    async with running(services):
        made = await client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
        batch = await ended(client, made.id)
    assert batch.status == "failed"
    assert batch.errors is not None
    assert batch.errors.data is not None
    assert (batch.errors.data[0].code, batch.errors.data[0].line) == (code, at)
    assert not services.engine.submitted


async def test_restart_goes_on_where_it_was_left(tmp_path: Path) -> None:
    """The daemon is stopped in the middle, and a line of the answers is cut off as by a crash."""
    async with fake_services(tmp_path) as services, http_server(build_app(services)) as url:
        services.engine.token_s = 0.01
        async with openai.AsyncOpenAI(base_url=url + "/v1", api_key=services.key) as client, running(services):
            made = await begin(client, *(line(number) for number in range(40)))
            async with asyncio.timeout(10):
                while len(services.engine.submitted) < 20:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
        await services.freed()
        (record,) = await services.batches.open_batches()
        assert record.output_file_id is not None
        path = services.batches.shelf.path(record.output_file_id)
        before = lines.answered_ids(path)
        assert 0 < len(before) < 40
        with path.open("ab") as file:
            file.write(b'{"id":"batch_req_1","custom_id":"r39","respo')
        key, first = services.key, len(services.engine.submitted)
    async with fake_services(tmp_path, key) as services, http_server(build_app(services)) as url:
        async with openai.AsyncOpenAI(base_url=url + "/v1", api_key=services.key) as client, running(services):
            batch = await ended(client, made.id)
            found = await answers(client, batch.output_file_id)
        assert (batch.request_counts.completed, len(found)) == (40, 40)
        assert len(services.engine.submitted) == 40 - len(before)
        assert first >= len(before)


async def test_cancel_keeps_what_is_done(client: openai.AsyncOpenAI, services: FakeServices) -> None:
    services.engine.token_s = 0.005
    async with running(services) as runner:
        batch = await begin(client, *(line(number) for number in range(200)))
        async with asyncio.timeout(10):
            while len(services.engine.submitted) < 20:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        cancelling = await client.batches.cancel(batch.id)
        assert cancelling.status == "cancelling"
        done = await ended(client, batch.id)
        assert done.status == "cancelled"
        found = await answers(client, done.output_file_id)
        assert 0 < len(found) == done.request_counts.completed < 200
        await services.freed()
        with pytest.raises(openai.BadRequestError):
            await client.batches.cancel(batch.id)
        assert runner.active == 0


async def test_others_go_first(client: openai.AsyncOpenAI, services: FakeServices) -> None:
    """While somebody waits for a request no line begins."""
    services.engine.hold = asyncio.Event()
    waiting = asyncio.create_task(
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "hi"}])
    )
    while not services.engine.open:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    async with running(services):
        batch = await begin(client, line(0))
        await asyncio.sleep(0.5)
        assert len(services.engine.submitted) == 1
        services.engine.hold.set()
        await waiting
        assert (await ended(client, batch.id)).status == "completed"


async def test_quota_is_waited_for(
    client: openai.AsyncOpenAI, services: FakeServices, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("daemon.batches.run.LONGEST_PAUSE_S", 0.05)
    key = await services.new_key("slow", TenantLimits(requests_per_minute=1, max_concurrency=1))
    async with openai.AsyncOpenAI(base_url=url + "/v1", api_key=key, max_retries=0) as slow, running(services):
        batch = await begin(slow, line(0), line(1))
        async with asyncio.timeout(5):
            while not services.engine.submitted:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        actor = TESTER
        await services.tenants.set_limits(actor, "slow", TenantLimits())
        done = await ended(slow, batch.id)
    assert (done.request_counts.completed, done.request_counts.failed) == (2, 0)


async def test_window_that_ends_expires_the_rest(client: openai.AsyncOpenAI, services: FakeServices) -> None:
    batch = await begin(client, line(0), line(1))
    (record,) = await services.batches.open_batches()
    past = utc_now() - timedelta(seconds=1)
    await services.batches.change(record.tenant_id, record.id, lambda found: replace(found, expires_at=past))
    async with running(services):
        done = await ended(client, batch.id)
    assert done.status == "expired"
    bad = await answers(client, done.error_file_id)
    assert {one["error"]["code"] for one in bad.values()} == {"batch_expired"}
    assert done.request_counts.failed == 2


async def test_revoked_key_ends_its_batch(client: openai.AsyncOpenAI, services: FakeServices, url: str) -> None:
    key = await services.new_key("other")
    async with openai.AsyncOpenAI(base_url=url + "/v1", api_key=key) as other:
        await begin(other, line(0))
    (record,) = await services.batches.open_batches()
    await services.tenants.revoke_key(TESTER, record.key_id)
    async with running(services):
        async with asyncio.timeout(5):
            while await services.batches.open_batches():  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    assert not services.engine.submitted


async def test_tenants_see_their_own_alone(client: openai.AsyncOpenAI, services: FakeServices, url: str) -> None:
    batch = await begin(client, line(0))
    key = await services.new_key("other")
    async with openai.AsyncOpenAI(base_url=url + "/v1", api_key=key, max_retries=0) as other:
        assert [one async for one in other.files.list()] == []
        assert [one async for one in other.batches.list()] == []
        for ask in (
            lambda: other.files.retrieve(batch.input_file_id),
            lambda: other.files.content(batch.input_file_id),
            lambda: other.files.delete(batch.input_file_id),
            lambda: other.batches.retrieve(batch.id),
            lambda: other.batches.cancel(batch.id),
            lambda: other.batches.create(input_file_id=batch.input_file_id, endpoint=CHAT, completion_window="24h"),
        ):
            with pytest.raises(openai.NotFoundError):
                await ask()


async def test_hours_that_are_not_now_begin_nothing(tmp_path: Path) -> None:
    async with fake_services(tmp_path) as services:
        clock = utc_now().astimezone(ZoneInfo("UTC"))
        later = [(clock + timedelta(hours=hours)).strftime("%H:%M") for hours in (2, 3)]
        schedule = services.settings.schedule.model_copy(update={"timezone": "UTC"})
        services.settings = services.settings.model_copy(update={"schedule": schedule})
        services.batches.settings = BatchSettings(hours="-".join(later))
        async with (
            http_server(build_app(services)) as url,
            openai.AsyncOpenAI(base_url=url + "/v1", api_key=services.key) as client,
            running(services),
        ):
            batch = await begin(client, line(0))
            await asyncio.sleep(0.6)
            assert (await client.batches.retrieve(batch.id)).status == "in_progress"
            assert not services.engine.submitted


async def test_suspended_tenant_waits_and_goes_on(
    client: openai.AsyncOpenAI, services: FakeServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("daemon.batches.run.LONGEST_PAUSE_S", 0.05)
    batch = await begin(client, line(0))
    await services.tenants.suspend(TESTER, "demo")
    async with running(services):
        await asyncio.sleep(0.5)
        assert not services.engine.submitted
        await services.tenants.resume(TESTER, "demo")
        assert (await ended(client, batch.id)).status == "completed"


async def test_full_disk_is_waited_for(
    client: openai.AsyncOpenAI, services: FakeServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("daemon.batches.run.LONGEST_PAUSE_S", 0.05)
    batch = await begin(client, line(0), line(1))
    full = [True]
    write = os.write

    def limited(number: int, data: Any) -> int:
        """Half of it goes in, then the disk is full."""
        if full[0] and os.readlink(f"/proc/self/fd/{number}").endswith(".jsonl"):
            if len(data) > 64:
                return write(number, data[:32])
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(number, data)

    monkeypatch.setattr("daemon.batches.shelf.os.write", limited)
    async with running(services):
        async with asyncio.timeout(10):
            while (await client.batches.retrieve(batch.id)).status == "validating":  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        await asyncio.sleep(0.2)
        assert (await client.batches.retrieve(batch.id)).status == "in_progress"
        with pytest.raises(openai.InternalServerError, match="No space left"):
            await client.files.create(file=("x.jsonl", jsonl(line(0))), purpose="batch")
        full[0] = False
        done = await ended(client, batch.id)
    assert len(await answers(client, done.output_file_id)) == 2


async def test_batch_of_a_tenant_that_is_gone_ends(client: openai.AsyncOpenAI, services: FakeServices) -> None:
    services.engine.token_s = 0.01
    async with running(services) as runner:
        batch = await begin(client, *(line(number) for number in range(50)))
        async with asyncio.timeout(5):
            while not services.engine.submitted:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        await services.store.write(lambda session: session.execute(delete(Tenant)) and None)
        async with asyncio.timeout(10):
            while runner.active:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    assert batch.id


async def test_model_that_another_plan_loads_is_waited_for_and_holds_nobody_up(
    client: openai.AsyncOpenAI, services: FakeServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("daemon.batches.run.LONGEST_PAUSE_S", 0.05)
    monkeypatch.setattr("daemon.batches.run.MAX_BEGUN", 12)
    services.router.imported = lambda: ["night"]
    key = await services.new_key("other")
    other = client.with_options(api_key=key)
    async with running(services) as runner:
        batch = await begin(client, *(line(number, model="night") for number in range(40)))
        quick = await begin(other, line(0))
        assert (await ended(other, quick.id)).status == "completed"
        assert (await client.batches.retrieve(batch.id)).status == "in_progress"
        add_replica(services.router, "night", FakeEngine())
        done = await ended(client, batch.id)
        assert (done.status, done.request_counts.completed) == ("completed", 40)
        async with asyncio.timeout(2):
            while runner.active:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert runner._places._value == services.settings.batches.parallel


async def test_model_that_is_not_there_is_an_error_of_its_line(
    client: openai.AsyncOpenAI, services: FakeServices
) -> None:
    async with running(services):
        done = await ended(client, (await begin(client, line(0, model="absent"))).id)
    bad = await answers(client, done.error_file_id)
    assert bad["r0"]["response"]["status_code"] == 404
