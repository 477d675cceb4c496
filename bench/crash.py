"""The daemon is killed under load, again and again; each time the database is sound and the audit chain whole.

    python -m bench.crash [--gguf PATH] [--times 100]

After each kill: no worker survives, the database passes its check, the audit chain is whole, and what usage holds is
compared with what clients got: at most what the last second settled may be missing. Prints provenance and the sums.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path

import psutil

from bench.box import DEFAULT_GGUF, Box, box
from bench.http_clients import Stream, chat_request, stream
from bench.provenance import provenance

CLIENTS = 8
LATEST_LOSS_S = 1.5  # settled once a second, and the write itself


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--gguf", type=Path, default=DEFAULT_GGUF)
    parser.add_argument("--times", type=int, default=100)
    asked = parser.parse_args()
    print(json.dumps(provenance("crash")), flush=True)
    draw = random.Random(1)
    sums = {"kills": 0, "unsound": 0, "broken_chains": 0, "late_losses": 0, "lost_requests": 0,
            "counted_lost_requests": 0, "uncounted_losses": 0, "ended_requests": 0}  # fmt: skip
    starts: list[float] = []
    missing = 0
    with box(asked.gguf) as made:
        made.script(token_s=0.005)
        key = made.tenant("crash")
        for _ in range(asked.times):
            starts.append(made.start())
            made.until_serving()
            counted = _counted(made)
            sums["counted_lost_requests"] += counted
            sums["uncounted_losses"] += missing > counted
            before = _recorded(made)
            killed_mono, ended = asyncio.run(_load_and_kill(made, key, draw.uniform(0.5, 2.5)))
            sums["kills"] += 1
            missing = _check(made, before, killed_mono, ended, sums)
            print(json.dumps(sums), flush=True)
    print(
        json.dumps({**sums, "start_s_mean": round(sum(starts) / len(starts), 2), "start_s_max": round(max(starts), 2)})
    )
    return int(any(sums[name] for name in ("unsound", "broken_chains", "late_losses", "uncounted_losses")))


async def _load_and_kill(made: Box, key: str, after_s: float) -> tuple[float, list[float]]:
    """When it was killed, and when each stream had ended whole."""
    ended: list[float] = []
    children = psutil.Process(made.process.pid if made.process else 0).children(recursive=True)

    async def client() -> None:
        while True:
            found: Stream = await stream(made.url, chat_request(key, 20))
            if not found.whole:
                return
            ended.append(time.monotonic())

    tasks = [asyncio.create_task(client()) for _ in range(CLIENTS)]
    auditing = asyncio.create_task(_change_things(made))
    await asyncio.sleep(after_s)
    children += psutil.Process(made.process.pid if made.process else 0).children(recursive=True)
    made.kill()
    killed_mono = time.monotonic()
    auditing.cancel()
    await asyncio.gather(auditing, *tasks, return_exceptions=True)
    _, alive = psutil.wait_procs(children, timeout=5)
    if alive:
        raise RuntimeError(f"outlived the daemon: {alive}")
    return killed_mono, ended


async def _change_things(made: Box) -> None:
    """Audited writes all the while, so that some are cut in the middle."""
    number = 0
    while True:
        number += 1
        await asyncio.to_thread(_post, made, f"admission/{'pause' if number % 2 else 'resume'}")
        await asyncio.to_thread(_post, made, "admission/resume")


def _post(made: Box, path: str) -> None:
    import httpx

    transport = httpx.HTTPTransport(uds=str(made.state_dir / "run" / "admin.sock"))
    with httpx.Client(transport=transport, base_url="http://bayard", timeout=5) as client:
        try:
            client.post(f"/admin/v1/{path}")
        except httpx.HTTPError:
            return  # it was killed meanwhile: what this bench is about


def _recorded(made: Box) -> int:
    with closing(sqlite3.connect(made.state_dir / "bayard.db")) as connection:
        return int(connection.execute("SELECT COALESCE(SUM(requests - errors), 0) FROM usage_minutes").fetchone()[0])


def _check(made: Box, before: int, killed_mono: float, ended: list[float], sums: dict[str, int]) -> int:
    """How many ended requests the database does not know."""
    with closing(sqlite3.connect(made.state_dir / "bayard.db")) as connection:
        sums["unsound"] += connection.execute("PRAGMA integrity_check").fetchone()[0] != "ok"
        sums["unsound"] += connection.execute("PRAGMA foreign_key_check").fetchone() is not None
    sums["broken_chains"] += '"whole": true' not in made.command("audit", "verify", "--json")
    missing = len(ended) - (_recorded(made) - before)
    recent = sum(at > killed_mono - LATEST_LOSS_S for at in ended)
    sums["ended_requests"] += len(ended)
    sums["lost_requests"] += max(0, missing)
    sums["late_losses"] += missing > recent
    return missing


def _counted(made: Box) -> int:
    """What the daemon says was not recorded, since its start."""
    import httpx

    text = httpx.get(f"{made.url}/metrics", trust_env=False, timeout=10).text
    for line in text.splitlines():
        if line.startswith("bayard_usage_unrecorded_total "):
            return int(float(line.split()[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
