"""What the daemon adds: streamed tokens a second, time to the first token, start and memory, against a null engine.

    python -m bench.serve [--gguf PATH] [--clients 256] [--rate 50] [--seconds 10]

The engine answers at once, so all that is measured is the control plane. Clients run in a process of their own and
share the machine's cores with the daemon and the engine. Prints one JSON line of provenance and one of figures.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from bench.box import DEFAULT_GGUF, Box, box
from bench.http_clients import Stream, chat_request, percentile, stream
from bench.provenance import provenance


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--gguf", type=Path, default=DEFAULT_GGUF)
    parser.add_argument("--clients", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rate", type=float, default=50.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    asked = parser.parse_args()
    print(json.dumps(provenance("serve")))
    with box(asked.gguf, BAYARD_LIMITS_MAX_QUEUE="100000") as made:
        key = made.tenant("bench")
        print(json.dumps(measure(made, key, asked.clients, asked.tokens, asked.rate, asked.seconds)))
    return 0


def measure(made: Box, key: str, clients: int, tokens: int, rate: float, seconds: float) -> dict[str, object]:
    """All figures of one run. Blocks: for about four times `seconds`."""
    started_s = made.start()
    made.until_serving()
    idle_bytes = made.figures()["rss_bytes"]
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        pool.submit(_warm, made.url, key).result()
        paced = pool.submit(_paced, made.url, key, rate, seconds).result()
        crowd, took_s = pool.submit(_crowd, made.url, key, clients, tokens, seconds).result()
    ttfts_ms = [1000 * one.ttft_s for one in paced if one.ttft_s is not None]
    return {
        "start_s": round(started_s, 2),
        "idle_rss_mb": round(idle_bytes / 1e6),
        "loaded_rss_mb": round(made.figures()["rss_bytes"] / 1e6),
        "clients": clients,
        "tokens_per_s": round(sum(one.tokens for one in crowd) / took_s),
        "requests_per_s": round(len(crowd) / took_s, 1),
        "incomplete": sum(not one.whole for one in crowd),
        "rate_per_s": rate,
        "ttft_p50_ms": round(percentile(ttfts_ms, 0.5), 2),
        "ttft_p99_ms": round(percentile(ttfts_ms, 0.99), 2),
        "paced_requests": len(paced),
        "paced_without_token": len(paced) - len(ttfts_ms),
    }


def _warm(url: str, key: str) -> None:
    async def run() -> None:
        for _ in range(20):
            await stream(url, chat_request(key, 8))

    asyncio.run(run())


def _paced(url: str, key: str, rate: float, seconds: float) -> list[Stream]:
    async def run() -> list[Stream]:
        tasks = []
        begun = time.monotonic()
        for number in range(int(rate * seconds)):
            await asyncio.sleep(max(0.0, begun + number / rate - time.monotonic()))
            tasks.append(asyncio.create_task(stream(url, chat_request(key, 16))))
        return await asyncio.gather(*tasks)

    return asyncio.run(run())


def _crowd(url: str, key: str, clients: int, tokens: int, seconds: float) -> tuple[list[Stream], float]:
    async def run() -> tuple[list[Stream], float]:
        found: list[Stream] = []
        begun = time.monotonic()

        async def client() -> None:
            while time.monotonic() - begun < seconds:
                found.append(await stream(url, chat_request(key, tokens)))

        await asyncio.gather(*(client() for _ in range(clients)))
        return found, time.monotonic() - begun

    return asyncio.run(run())


if __name__ == "__main__":
    sys.exit(main())
