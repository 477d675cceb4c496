"""Thousands of connections that do nothing beside clients that work: what they cost, and that nobody is kept out.

    python -m bench.idle [--gguf PATH] [--connections 10000] [--rate 50] [--seconds 10]

Idle connections are kept ones: each has asked once and waits. Opened by processes of their own, so that the limit of
open files binds the daemon alone. Prints provenance, a line without and a line with them, and a line above the bound.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.synchronize import Event
from pathlib import Path
from urllib.parse import urlsplit

from bench.box import DEFAULT_GGUF, Box, box
from bench.http_clients import percentile
from bench.provenance import provenance
from bench.serve import _paced, _warm

ASK = b"GET /healthz HTTP/1.1\r\nhost: bench\r\n\r\n"
HOLDERS = 2


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--gguf", type=Path, default=DEFAULT_GGUF)
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--rate", type=float, default=50.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    asked = parser.parse_args()
    print(json.dumps({**provenance("idle"), "open_files": resource.getrlimit(resource.RLIMIT_NOFILE)[1]}), flush=True)
    settings = {"BAYARD_HTTP_MAX_CONNECTIONS": str(asked.connections + 64), "BAYARD_HTTP_KEEP_ALIVE_S": "3600"}
    with box(asked.gguf, keep=None, **settings) as made:
        key = made.tenant("bench")
        made.start()
        made.until_serving()
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            pool.submit(_warm, made.url, key).result()
            before = _measure(made, pool, key, asked.rate, asked.seconds, 0)
            with _held(made.url, asked.connections) as (opened, took_s):
                beside = _measure(made, pool, key, asked.rate, asked.seconds, opened)
                beside["opened_per_s"] = round(opened / took_s)
                beside["bytes_a_connection"] = round((beside["rss_bytes"] - before["rss_bytes"]) / max(1, opened))
                with _held(made.url, 1_000) as (more, _):
                    above = _measure(made, pool, key, asked.rate, asked.seconds, more)
            above["evicted"] = _evicted(made)
            made.until(lambda: made.figures()["fds"] <= before["fds"] + 16, 60)
            after = {"fds_after": made.figures()["fds"], "rss_after": made.figures()["rss_bytes"]}
        status = made.stop()
    print(json.dumps({"run": "alone", **before}))
    print(json.dumps({"run": "beside", **beside}))
    print(json.dumps({"run": "above the bound", **above, **after, "exit_status": status}))
    return int(beside["idle"] < asked.connections or before["without_token"] + beside["without_token"] > 0)


def _measure(
    made: Box, pool: ProcessPoolExecutor, key: str, rate: float, seconds: float, idle: int
) -> dict[str, int | float]:
    paced = pool.submit(_paced, made.url, key, rate, seconds).result()
    ttfts_ms = [1000 * one.ttft_s for one in paced if one.ttft_s is not None]
    return {
        "idle": idle,
        "ttft_p50_ms": round(percentile(ttfts_ms, 0.5), 2),
        "ttft_p99_ms": round(percentile(ttfts_ms, 0.99), 2),
        "requests": len(paced),
        "without_token": len(paced) - len(ttfts_ms),
        **made.figures(),
    }


@contextmanager
def _held(url: str, count: int) -> Iterator[tuple[int, float]]:
    """How many were opened and had their first answer, and in what time."""
    context = get_context("spawn")
    leave = context.Event()
    told = context.Queue()
    begun = time.monotonic()
    holders = [context.Process(target=_hold, args=(url, count // HOLDERS, leave, told)) for _ in range(HOLDERS)]
    for holder in holders:
        holder.start()
    try:
        yield sum(told.get(timeout=300) for _ in holders), time.monotonic() - begun
    finally:
        leave.set()
        for holder in holders:
            holder.join(60)


def _hold(url: str, count: int, leave: Event, told: object) -> None:
    async def run() -> None:
        where = urlsplit(url)
        writers = []
        for _ in range(count):
            try:
                reader, writer = await asyncio.open_connection(where.hostname, where.port)
                writer.write(ASK)
                if not (await asyncio.wait_for(reader.readuntil(b"\r\n"), 30)).startswith(b"HTTP/1.1 200"):
                    break
            except (OSError, TimeoutError, asyncio.IncompleteReadError):
                break
            writers.append(writer)
        told.put(len(writers))  # type: ignore[attr-defined]  # a queue of the context
        await asyncio.to_thread(leave.wait)
        for writer in writers:
            writer.close()

    asyncio.run(run())


def _evicted(made: Box) -> int:
    import httpx

    text = httpx.get(f"{made.url}/metrics", trust_env=False, timeout=10).text
    mark = 'bayard_http_connections_closed_total{why="evicted"} '
    return int(float(text.partition(mark)[2].split()[0]))


if __name__ == "__main__":
    sys.exit(main())
