"""Our own figures through the real worker: its process, its messages and its step loop, as the daemon uses them."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from bench.peer_process import PROMPT, STEPS
from bench.read_rate import read_rate_with
from engine.client import EngineClient
from engine.errors import WorkerError
from engine.messages import FinishReason, Knobs, SamplingParams, Submit, WorkerConfig, WorkerFailed, WorkerReady
from engine.spec import read_spec

STREAMS = 8
EMBEDDING = "token_embd.weight"  # of a GGUF file
READY_LIMIT_S = 300.0
TURNS = 3


def ours(path: Path, threads: int, activation: str) -> dict[str, object]:
    """Measure; the keys are those of bench.peer_process and some more.

    Blocks: about a minute
    Raises: WorkerError when the worker does not come up or a request fails
    """
    with tempfile.TemporaryDirectory(prefix="bayard-bench-") as folder:
        figures = asyncio.run(_with_worker(path, threads, activation, Path(folder)))
    return {**figures, **read_share(float(str(figures["decode_tok_s"])), path, read_rate_with(threads))}


def read_share(decode_tok_s: float, path: Path, read_bytes_s: float) -> dict[str, object]:
    """What part of the memory's read rate decoding takes, by the weights that a token needs read."""
    token_bytes = bytes_a_token(path)
    return {
        "read_bytes_s": round(read_bytes_s),
        "bytes_a_token": token_bytes,
        "read_share": round(decode_tok_s * token_bytes / read_bytes_s, 3),
    }


def bytes_a_token(path: Path) -> int:
    """Stored bytes of all matrices that a token is multiplied by: of an embedding only if it is the head as well."""
    spec = read_spec(str(path))
    matrices = [info for info in spec.tensors if len(info.shape) > 1]
    return sum(info.size_bytes for info in matrices if spec.tie_embeddings or info.name != EMBEDDING)


async def _with_worker(path: Path, threads: int, activation: str, folder: Path) -> dict[str, object]:
    config = WorkerConfig(
        worker_id="bench",
        model_name=path.stem,
        model_path=str(path),
        endpoint=f"ipc://{folder}/worker",
        activation=activation,
        kv_tokens=STREAMS * 1024,
        max_context_tokens=2048,
        threads=threads,
        knobs=Knobs(max_running=STREAMS, token_budget=512 + STREAMS, prefill_chunk=512, prefix_cache=False),
    )
    (folder / "worker.json").write_bytes(msgspec.json.encode(config))
    client = EngineClient(config.endpoint)
    await client.start()
    with (folder / "worker.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "engine.worker",
            str(folder / "worker.json"),
            stderr=log,
            cwd=Path(__file__).parent.parent,
        )
    try:
        ready = await _ready(client, process)
        return await _figures(client, ready, path, threads)
    finally:
        await _end(client, process)


async def _end(client: EngineClient, process: asyncio.subprocess.Process) -> None:
    """Ask the worker to stop, and see that it has."""
    try:
        async with asyncio.timeout(10):
            if process.returncode is None:  # a message to a worker that is gone would wait for ever
                await client.stop()
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
    await client.close()


async def _ready(client: EngineClient, process: asyncio.subprocess.Process) -> WorkerReady:
    failures: list[WorkerFailed] = []
    client.on_failed = failures.append
    ended = asyncio.ensure_future(process.wait())
    either: set[asyncio.Future[Any]] = {client.ready, ended}
    await asyncio.wait(either, timeout=READY_LIMIT_S, return_when=asyncio.FIRST_COMPLETED)
    if client.ready.done():
        ended.cancel()
        return client.ready.result()
    await asyncio.sleep(0.2)  # its last message may still be on the way
    said = f": {failures[0].error.message}" if failures else ""
    raise WorkerError(f"The worker is not ready after {READY_LIMIT_S:g} s, exit status {process.returncode}{said}.")


async def _figures(client: EngineClient, ready: WorkerReady, path: Path, threads: int) -> dict[str, object]:
    prefill_s = decode_s = total_s = float("inf")
    for turn in range(TURNS):
        begun = time.perf_counter()
        moments = await _stream(client, f"one-{turn}", STEPS + 1)
        prefill_s = min(prefill_s, moments[0] - begun)
        decode_s = min(decode_s, moments[-1] - moments[0])
    for turn in range(TURNS):
        total_s = min(total_s, await _many(client, turn))
    assert client.stats is not None
    rss = client.stats.rss_bytes
    return {
        "peer": "ours",
        "threads": threads,
        "prefill_tok_s": round(len(PROMPT) / prefill_s, 1),
        "decode_tok_s": round(STEPS / decode_s, 2),
        f"streams{STREAMS}_decode_tok_s": round(1 / total_s, 2),
        "rss_bytes": rss,
        "rss_beyond_file_bytes": rss - path.stat().st_size,
        "load_s": round(ready.load_s, 2),
        "kernels": ready.kernels,
        "notes": ready.notes,
    }


async def _stream(client: EngineClient, request_id: str, max_tokens: int) -> list[float]:
    """When each token of a request came. Raises: WorkerError when it does not end at its length."""
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
    moments = []
    async for delta in client.submit(Submit(request_id, PROMPT, sampling)):
        moments += [time.perf_counter()] * len(delta.token_ids)
        if delta.finish not in (None, FinishReason.LENGTH):
            raise WorkerError(f"The request {request_id} ended with {delta.finish}: {delta.error}")
    return moments


async def _many(client: EngineClient, turn: int) -> float:
    """Seconds a token while all streams decode: from the last stream's first token to the first stream's last."""
    requests = [_stream(client, f"many-{turn}-{n}", STEPS + STREAMS + 1) for n in range(STREAMS)]
    streams = await asyncio.gather(*requests)
    begins, ends = max(moments[0] for moments in streams), min(moments[-1] for moments in streams)
    tokens = sum(begins < moment <= ends for moments in streams for moment in moments)
    if tokens < STREAMS * STEPS // 2:
        raise WorkerError(f"The streams decoded only {tokens} tokens side by side; {STREAMS * STEPS // 2} are needed.")
    return (ends - begins) / tokens
