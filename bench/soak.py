"""Mixed load for as long as asked; memory, file descriptors and threads of the daemon have to stay flat.

    python -m bench.soak [--gguf PATH] [--minutes 60] [--rate 8] [--keep FOLDER]

Streams that end, streams whose client leaves, slow readers, whole answers, embeddings, wrong keys and bodies, listings,
scrapes, admin reads, keys that are made, used and revoked; every few minutes the worker is killed. Prints provenance,
a line a sample, and a line of the verdict.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

from bench.box import DEFAULT_GGUF, MODEL, Box, box
from bench.http_clients import chat_request, stream
from bench.provenance import provenance

SAMPLE_EVERY_S = 30.0
SETTLING_S = 300.0  # caches fill, threads start
GROWTH_BYTES_PER_HOUR = 12 << 20
GUESSER = "127.0.0.9"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--gguf", type=Path, default=DEFAULT_GGUF)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=8.0)
    parser.add_argument("--kill-every", type=float, default=300.0, help="seconds between kills of the worker")
    parser.add_argument("--keep", type=Path, help="folder that the daemon's log and exit status stay in")
    asked = parser.parse_args()
    print(json.dumps(provenance("soak")), flush=True)
    settings = {"BAYARD_WORKERS_BACKOFF_BASE_S": "0.1", "BAYARD_WORKERS_FAST_EXIT_S": "1"}
    with box(asked.gguf, keep=asked.keep, **settings) as made:
        made.script(token_s=0.02, embeds=8)
        limits = ("--max-concurrency", "32", "--tokens-per-day", "100000000", "--requests-per-minute", "6000")
        key = made.tenant("soak", *limits)
        made.start()
        made.until_serving()
        verdict = asyncio.run(soak(made, key, asked.minutes * 60, asked.rate, asked.kill_every))
        verdict["exit_status"] = made.stop()
        verdict["log"] = made.log_counts()
    print(json.dumps(verdict), flush=True)
    return 0 if verdict["flat"] else 1


async def soak(made: Box, key: str, seconds: float, rate: float, kill_every_s: float) -> dict[str, object]:
    """The verdict. Blocks: for `seconds`."""
    counts: dict[str, int] = {}
    samples: list[dict[str, float]] = []
    begun = time.monotonic()
    running: set[asyncio.Task[None]] = set()
    draw = random.Random(0)
    next_sample, next_kill, number = 0.0, kill_every_s, 0
    while (passed := time.monotonic() - begun) < seconds:
        if passed >= next_sample:
            next_sample += SAMPLE_EVERY_S
            samples.append({"at_s": round(passed), **made.figures(), **made.worker_figures(), **_usage_of(made)})
            print(json.dumps({**samples[-1], "counts": counts}), flush=True)
        if passed >= next_kill:
            next_kill += kill_every_s
            counts["worker_kills"] = counts.get("worker_kills", 0) + _kill_worker(made)
        kind = draw.choices(list(_KINDS), weights=[weight for _, weight in _KINDS.values()])[0]
        task = asyncio.create_task(_one(kind, made, key, draw.random(), counts))
        running.add(task)
        task.add_done_callback(running.discard)
        number += 1
        await asyncio.sleep(max(0.0, begun + number / rate - time.monotonic()))
    await asyncio.gather(*running)
    await asyncio.sleep(2)
    return _verdict(samples, made.figures(), counts)


def _verdict(samples: list[dict[str, float]], end: dict[str, int], counts: dict[str, int]) -> dict[str, object]:
    steady = [one for one in samples if one["at_s"] >= min(SETTLING_S, samples[-1]["at_s"] / 2)]
    growth = _slope([one["at_s"] for one in steady], [one["rss_bytes"] for one in steady]) * 3600
    fds = [int(one["fds"]) for one in steady]
    threads = [int(one["threads"]) for one in steady]
    half = len(threads) // 2
    flat = (
        growth <= GROWTH_BYTES_PER_HOUR
        and end["fds"] <= min(fds) + 8
        and max(threads[half:]) <= max(threads[: half + 1]) + 1
    )
    answered = counts.get("stream 200", 0)
    failed = sum(count for label, count in counts.items() if label.startswith("stream ") and label != "stream 200")
    return {
        "flat": flat and failed <= answered / 50,  # streams fail only around the kills
        "minutes": round(samples[-1]["at_s"] / 60, 1),
        "rss_growth_mb_per_hour": round(growth / 1e6, 2),
        "rss_first_mb": round(steady[0]["rss_bytes"] / 1e6, 1),
        "rss_last_mb": round(end["rss_bytes"] / 1e6, 1),
        "fds_min_max_end": [min(fds), max(fds), end["fds"]],
        "threads_min_max_end": [min(threads), max(threads), end["threads"]],
        "counts": counts,
    }


async def _one(kind: str, made: Box, key: str, chance: float, counts: dict[str, int]) -> None:
    try:
        outcome = await asyncio.wait_for(_KINDS[kind][0](made, key, chance), 60)
    except (OSError, TimeoutError) as error:
        outcome = type(error).__name__
    label = f"{kind} {outcome}"
    counts[label] = counts.get(label, 0) + 1


async def _stream(made: Box, key: str, chance: float) -> str:
    found = await stream(made.url, chat_request(key, int(10 + 90 * chance), text="word " * int(1 + 50 * chance)))
    return f"{found.status}{'' if found.whole or found.status != 200 else ' cut'}"


async def _leaving(made: Box, key: str, chance: float) -> str:
    where = urlsplit(made.url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    writer.write(chat_request(key, 200))
    await reader.read(200)
    await asyncio.sleep(chance)
    writer.close()
    return "left"


async def _slow(made: Box, key: str, chance: float) -> str:
    where = urlsplit(made.url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port, limit=1024)
    writer.write(chat_request(key, 100))
    while True:
        if not await reader.read(512):
            break
        await asyncio.sleep(0.05 * chance)
    writer.close()
    return "read"


async def _whole(made: Box, key: str, chance: float) -> str:
    request = {"model": MODEL, "max_tokens": int(10 + 50 * chance), "messages": [{"role": "user", "content": "Hello"}]}
    return await _post(made, "/v1/chat/completions", key, request)


async def _embedding(made: Box, key: str, chance: float) -> str:
    return await _post(made, "/v1/embeddings", key, {"model": MODEL, "input": ["word " * int(1 + 50 * chance)] * 3})


async def _post(made: Box, path: str, key: str, request: dict[str, object]) -> str:
    body = json.dumps(request).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {key}\r\nconnection: close\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return str((await stream(made.url, head.encode() + body)).status)


async def _key(made: Box, key: str, chance: float) -> str:
    """Made, used, revoked, used again: the last must be refused."""
    issued = await asyncio.to_thread(made.admin, "tenants/soak/keys", {"name": "short-lived"})
    before = await _get(made, "/v1/models", issued["secret"])
    await asyncio.to_thread(made.admin, f"keys/{issued['item']['id']}/revoke", {})
    return f"{before} {await _get(made, '/v1/models', issued['secret'])}"


async def _wrong_key(made: Box, key: str, chance: float) -> str:
    """From an address of its own, which is soon slowed down; the others are not."""
    return str((await stream(made.url, chat_request(f"bk_live_wrong{chance}", 10), GUESSER)).status)


async def _wrong_body(made: Box, key: str, chance: float) -> str:
    return str((await stream(made.url, chat_request(key, -5))).status)


async def _get(made: Box, path: str, key: str) -> str:
    request = f"GET {path} HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {key}\r\nconnection: close\r\n\r\n"
    return str((await stream(made.url, request.encode())).status)


async def _listing(made: Box, key: str, chance: float) -> str:
    return await _get(made, "/v1/models", key)


async def _scrape(made: Box, key: str, chance: float) -> str:
    return await _get(made, "/metrics", key)


async def _admin(made: Box, key: str, chance: float) -> str:
    await asyncio.to_thread(
        made.admin, ("status", "workers", "usage", "requests", "tenants", "audit", "keys")[int(chance * 7)]
    )
    return "read"


_KINDS = {
    "stream": (_stream, 10), "leaving": (_leaving, 2), "slow": (_slow, 1), "whole": (_whole, 2),
    "embedding": (_embedding, 2), "key": (_key, 0.5), "wrong_key": (_wrong_key, 1), "wrong_body": (_wrong_body, 1),
    "listing": (_listing, 2), "scrape": (_scrape, 1), "admin": (_admin, 2),
}  # fmt: skip


def _kill_worker(made: Box) -> int:
    pids = [item["pid"] for item in made.admin("workers")["items"] if item["pid"]]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    return len(pids)


def _usage_of(made: Box) -> dict[str, float]:
    database = made.state_dir / "bayard.db"
    return {"database_bytes": database.stat().st_size}


def _slope(xs: list[float], ys: list[float]) -> float:
    """Of the line through the points with the least squares."""
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    below = sum((x - mean_x) ** 2 for x in xs)
    return sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / below if below else 0.0


if __name__ == "__main__":
    sys.exit(main())
