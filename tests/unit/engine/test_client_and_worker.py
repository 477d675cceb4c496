"""The border in earnest: a worker process and its client over ipc, and what happens when one of them goes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import torch
import zmq
import zmq.asyncio

from engine.client import EngineClient
from engine.errors import WorkerLost
from engine.messages import Embed, ErrorInfo, FinishReason, Knobs, SamplingParams, Submit, WorkerConfig

PROMPT = [1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47]


@asynccontextmanager
async def worker_on(model: Path | str, tmp_path: Path, **more: object):
    """A real worker process and its client; the process is gone afterwards."""
    endpoint = f"ipc://{tmp_path}/w.sock"
    usual = {"kv_tokens": 4096, "max_context_tokens": 512, "threads": 1}
    config = WorkerConfig("w1", "smol", str(model), endpoint, **{**usual, **more})
    file = tmp_path / "worker.json"
    file.write_bytes(msgspec.json.encode(config))
    client = EngineClient(endpoint)
    await client.start()
    command = [sys.executable, "-m", "engine.worker", str(file)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)  # noqa: ASYNC220 - short, in a test
    try:
        yield client, process
    finally:
        process.kill()
        process.wait()
        await client.close()


async def collect(client: EngineClient, submit: Submit) -> tuple[list[int], list[FinishReason]]:
    tokens: list[int] = []
    ends: list[FinishReason] = []
    async for delta in client.submit(submit):
        tokens += delta.token_ids
        ends += [delta.finish] if delta.finish else []
    return tokens, ends


def greedy(count: int) -> SamplingParams:
    return SamplingParams(max_tokens=count, temperature=0.0, ignore_eos=True)


async def until(condition, seconds: float = 10.0) -> None:
    for _ in range(int(seconds / 0.05)):
        if condition():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("it did not happen in time")


async def connected(client: EngineClient) -> None:
    """Until then nothing can be sent: the first knobs that arrive say so."""
    for _ in range(250):
        try:
            return await client.set_knobs(Knobs())
        except WorkerLost:
            await asyncio.sleep(0.02)
    raise AssertionError("nobody connected")


async def test_worker_serves_many_at_once_frees_what_is_left_and_stops_when_told(smollm_path, tmp_path):
    async with worker_on(smollm_path, tmp_path, knobs=Knobs(max_running=24)) as (client, process):
        ready = await asyncio.wait_for(client.ready, 60)
        assert ready.max_context_tokens == 512
        assert ready.kernels["rms_norm"]
        alone, _ = await collect(client, Submit("alone", PROMPT, greedy(6)))
        many = await asyncio.gather(*(collect(client, Submit(f"r{i}", PROMPT, greedy(6))) for i in range(40)))
        assert all(tokens == alone and ends == [FinishReason.LENGTH] for tokens, ends in many)

        async for _ in client.submit(Submit("leaves", PROMPT, greedy(400))):
            break  # the reader goes away after its first token
        await until(lambda: client.stats.running == 0 and client.stats.kv_pages_active == 0)
        assert client.inflight == 0
        assert client.stats.aborts_total == 1

        await client.set_knobs(Knobs(max_running=2))
        await until(lambda: client.stats.knobs.max_running == 2)
        step, beat = client.stats.step, client.stats.beat
        await until(lambda: client.stats.beat > beat)
        assert client.stats.step == step, "an idle worker beats without stepping"

        await client.stop()
        assert await asyncio.to_thread(process.wait, 20) == 0


async def test_a_worker_that_is_gone_holds_nobody(smollm_path, tmp_path):
    async with worker_on(smollm_path, tmp_path) as (client, process):
        await asyncio.wait_for(client.ready, 60)
        stream = client.submit(Submit("cut", PROMPT, greedy(400)))
        await anext(stream)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        client.fail_all(ErrorInfo("worker_lost", "It was killed."))
        rest = [delta async for delta in stream]
        assert [delta.finish for delta in rest if delta.finish] == [FinishReason.ERROR]
        assert (await collect(client, Submit("late", PROMPT, greedy(2))))[1] == [FinishReason.ERROR]
        await asyncio.wait_for(client.abort("cut"), 2)
        await asyncio.wait_for(client.stop(), 2)


async def test_commands_to_a_worker_that_never_came_do_not_wait_for_it(tmp_path):
    client = EngineClient(f"ipc://{tmp_path}/nobody.sock")
    await client.start()
    try:
        assert await asyncio.wait_for(collect(client, Submit("a", [1], greedy(1))), 2) == ([], [FinishReason.ERROR])
        await asyncio.wait_for(client.stop(), 2)
        with pytest.raises(WorkerLost):
            await asyncio.wait_for(client.set_knobs(Knobs()), 2)
    finally:
        await client.close()


async def test_a_worker_that_sends_nonsense_is_given_up_and_its_streams_end(tmp_path):
    endpoint = f"ipc://{tmp_path}/odd.sock"
    client = EngineClient(endpoint)
    await client.start()
    odd = zmq.asyncio.Context.instance().socket(zmq.DEALER)
    odd.connect(endpoint)
    told = []
    client.on_failed = told.append
    try:
        await connected(client)
        await asyncio.wait_for(odd.recv(), 5)
        stream = asyncio.create_task(collect(client, Submit("a", [1], greedy(1))))
        await asyncio.wait_for(odd.recv(), 5)
        await odd.send(b"\xc1 not msgpack")
        assert await asyncio.wait_for(stream, 5) == ([], [FinishReason.ERROR])
        assert told[0].error.code == "worker_error"
    finally:
        await asyncio.wait_for(client.close(), 5)
        odd.close(linger=0)


async def test_worker_that_cannot_load_says_why_and_exits_with_78(tmp_path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\x03\x00\x00\x00" + b"\xff" * 64)
    async with worker_on(broken, tmp_path) as (client, process):
        told = []
        client.on_failed = told.append
        assert await asyncio.to_thread(process.wait, 30) == 78
        await until(lambda: bool(told))
        assert told[0].error.code == "unsupported_format"


async def test_worker_ends_by_itself_when_its_parent_is_gone(smollm_path, tmp_path):
    """The parent here is a shell that starts the worker and is then killed."""
    config = WorkerConfig("w1", "smol", str(smollm_path), f"ipc://{tmp_path}/x.sock", kv_tokens=1024, threads=1)
    (tmp_path / "worker.json").write_bytes(msgspec.json.encode(config))
    log = tmp_path / "worker.log"
    command = f"{sys.executable} -m engine.worker {tmp_path}/worker.json 2>{log} & echo $!; wait"
    shell = subprocess.Popen(["sh", "-c", command], stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220
    assert shell.stdout is not None
    pid = int(shell.stdout.readline())
    await until(lambda: log.exists() and "worker_starting" in log.read_text(), 60)  # it knows its parent by then
    shell.kill()
    shell.wait()
    shell.stdout.close()
    await until(lambda: not _alive(pid), 30)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


async def test_worker_of_an_encoder_embeds_many_texts_and_refuses_to_generate(tmp_path):
    from tests.fakes.encoders import saved_encoder, texts, true_vector

    model = saved_encoder("bert", tmp_path / "model")
    async with worker_on(tmp_path / "model", tmp_path) as (client, process):
        ready = await asyncio.wait_for(client.ready, 60)
        assert (ready.embeds, ready.generates, ready.embedding_dimensions) == (True, False, 48)
        assert (ready.max_context_tokens, ready.kv_pages_total) == (66, 0)
        found = await asyncio.gather(*(client.embed(Embed(f"t{i}", text)) for i, text in enumerate(texts(40))))
        for delta, text in zip(found, texts(40), strict=True):
            assert delta.finish is FinishReason.STOP
            vector = torch.frombuffer(bytearray(delta.embedding), dtype=torch.float32)
            torch.testing.assert_close(vector, true_vector(model, text, "mean"), atol=2e-5, rtol=0)
        assert (await client.embed(Embed("long", [5] * 67))).error.code == "context_length_exceeded"
        assert await collect(client, Submit("s", [1], greedy(2))) == ([], [FinishReason.ERROR])
        assert client.inflight == 0
        await client.stop()
        assert await asyncio.to_thread(process.wait, 20) == 0


async def test_worker_of_a_model_without_pooling_refuses_to_embed(smollm_path, tmp_path):
    async with worker_on(smollm_path, tmp_path) as (client, _):
        ready = await asyncio.wait_for(client.ready, 60)
        assert (ready.embeds, ready.generates, ready.embedding_dimensions) == (False, True, 0)
        refused = await client.embed(Embed("t", PROMPT))
        assert (refused.finish, refused.error.code) == (FinishReason.ERROR, "invalid_parameter")
        assert "pooling" in refused.error.message
