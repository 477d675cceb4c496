"""A compressed day on one box: the same tide of requests against a latency plan, a throughput plan, and the schedule.

    python -m bench.tide --trace azure2023_conv.csv [--gguf PATH] [--fill 0.85] [--plot FILE.svg] > RESULT.jsonl

Night, day and night again; the day's arrivals are ten times as dense. Arrivals and lengths are a trace's, lengths cut
to what the machine can write. Two plans of different shape are saved, one for each strategy: the first two runs have
one of them each, the third has both under a schedule rule, following the load. All three see the same requests at the
same moments: by day so many that they fill the named share of what the throughput plan can do, measured first (or those
of --night-rate). A request counts where it was sent, by night or by day. Prints provenance and one line a run, the last
one with what must hold; exits 1 where that does not. Takes about eight minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from bench.box import DEFAULT_GGUF, MODEL, Box, box
from bench.http_clients import stream
from bench.provenance import provenance
from bench.tide_day import (
    DAY_S,
    TIDE,
    Answered,
    Arrival,
    Day,
    Lengths,
    figures,
    held,
    is_whole,
    read_trace,
    steady_rate,
    tide_of,
)
from bench.tide_plot import plot

CROWD = 96  # requests that the rate is found with ...
SPREAD = 5  # ... every fifth of the day's: a trace has stretches of long and of short ones
WORDS = (
    "time way year work government day man world life part house course case system place end group company party "
    "information school fact money point example state business night area water thing family head hand order john "
    "side home development week power country council use service room market problem court lot war police interest "
    "car law road form face education policy research sort office body person health mother question period name"
)
PLANS = ("tide-latency", "tide-throughput")
LIMITS = ("--max-concurrency", "10000", "--requests-per-minute", "1000000", "--tokens-per-day", "1000000000")


def request_of(key: str, arrival: Arrival) -> bytes:
    """Each prompt is another one, the same in every run: nothing of it is cached, and no word is easy to guess."""
    words = " ".join(random.Random(arrival.at_s).choices(WORDS.split(), k=arrival.prompt_words))
    body = json.dumps(
        {
            "model": MODEL, "stream": True, "max_tokens": arrival.output_tokens, "ignore_eos": True, "temperature": 0,
            "stream_options": {"include_usage": True},
            "messages": [{"role": "user", "content": words}],
        }
    ).encode()  # fmt: skip
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body


async def replay(url: str, key: str, arrivals: Sequence[Arrival]) -> list[Answered]:
    """Blocks: until the last answer is there."""
    begun = time.monotonic()

    async def one(arrival: Arrival) -> Answered:
        await asyncio.sleep(max(0.0, begun + arrival.at_s - time.monotonic()))
        return Answered(arrival, await stream(url, request_of(key, arrival)))

    return await asyncio.gather(*(one(arrival) for arrival in arrivals))


def moves_of(made: Box, began: datetime) -> list[dict[str, Any]]:
    """Every move of knobs and every switch, with its moment in the run, its gap and its reason."""
    found = []
    for event in made.admin("events?limit=500")["items"]:
        at_s = (datetime.fromisoformat(event["at"]) - began).total_seconds()
        fields = event["fields"]
        if at_s < 0 or not (fields.get("move") in ("knobs", "load") or event["to_state"] == "switched"):
            continue
        how = fields.get("move") or "switch"
        gap_s = fields.get("gap_s", 0.0)  # knobs change between two steps
        found.append(
            {"at_s": round(at_s, 1), "how": how, "gap_s": gap_s, "to": event["to_state"], "reason": event["reason"]}
        )
    return sorted(found, key=lambda move: move["at_s"])


def capacity(gguf: Path, crowd: Sequence[Arrival], engine: str) -> float:
    """Requests a second that the throughput plan ends when all come at once. Blocks: for a daemon's life."""
    with box(gguf, BAYARD_WORKERS_COMMAND=engine, BAYARD_LIMITS_MAX_QUEUE="100000") as made:
        key = made.tenant("tide", *LIMITS)
        prepare(made, "throughput", Day(0.0))
        made.start()
        made.until_serving()
        asyncio.run(replay(made.url, key, [Arrival(0.0, 16, 8)]))
        answers = asyncio.run(replay(made.url, key, [Arrival(one.at_s * 1e-9, *one_of(one)) for one in crowd]))
        made.stop()
    if not all(map(is_whole, answers)):
        raise SystemExit(
            f"{sum(not is_whole(one) for one in answers)} of the crowd's {len(answers)} got no whole answer"
        )
    return steady_rate(answers)


def one_of(arrival: Arrival) -> tuple[int, int]:
    return arrival.prompt_words, arrival.output_tokens


def prepare(made: Box, run: str, day: Day) -> datetime:
    """Plans and rules for a run; when it is to begin."""
    for plan in PLANS:
        made.command("plan", "save", plan, MODEL, "--strategy", plan.removeprefix("tide-"))
    if run != "scheduled":
        made.command("plan", "activate", f"tide-{run}")
        return datetime.now(UTC)
    for plan in PLANS:
        made.command("plan", "adapt", plan, "--dwell", "10")
    made.command("plan", "activate", PLANS[0])
    ahead = datetime.now(UTC) + timedelta(seconds=day.night_s + 15)  # the daemon starts meanwhile
    dawn = ahead.replace(second=0, microsecond=0) + timedelta(minutes=1)
    cron = f"{dawn.minute} {dawn.hour} * * *"
    made.command(
        "schedule", "add", "day", "--plan", PLANS[1], "--cron", cron, "--for", f"{int(day.day_s)}s",
        "--timezone", "UTC",
    )  # fmt: skip
    return dawn - timedelta(seconds=day.night_s)


def one_run(gguf: Path, run: str, arrivals: Sequence[Arrival], day: Day, engine: str) -> dict[str, Any]:
    """A daemon of its own, from start to stop. Blocks: for a little longer than the day."""
    with box(gguf, BAYARD_WORKERS_COMMAND=engine, BAYARD_LIMITS_MAX_QUEUE="100000") as made:
        key = made.tenant("tide", *LIMITS)
        begins = prepare(made, run, day)
        made.start()
        made.until_serving()
        asyncio.run(replay(made.url, key, [Arrival(0.0, 16, 8)]))  # the first request pays for what is built lazily
        time.sleep(max(0.0, (begins - datetime.now(UTC)).total_seconds()))
        began = datetime.now(UTC)
        answers = asyncio.run(replay(made.url, key, arrivals))
        ended = [(one.arrival.at_s + one.got.total_s, one.got.tokens) for one in answers if is_whole(one)]
        found = {"run": run, **figures(answers, day), "moves": moves_of(made, began)}
        lost = [one for one in answers if not is_whole(one)]
        found["lost_at"] = [
            [round(o.arrival.at_s, 1), o.got.status, o.got.tokens, round(o.got.total_s, 1)] for o in lost
        ]
        found["ended"] = [[round(at_s, 2), tokens] for at_s, tokens in sorted(ended)]
        made.stop()
    return found


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.tide", description=__doc__)
    parser.add_argument("--trace", type=Path, required=True, help="TIMESTAMP,ContextTokens,GeneratedTokens")
    parser.add_argument("--gguf", type=Path, default=DEFAULT_GGUF)
    parser.add_argument("--night-s", type=float, default=30.0, help="of each of the two nights")
    parser.add_argument("--day-s", type=float, default=DAY_S)
    parser.add_argument("--fill", type=float, default=0.85, help="the day's share of what the throughput plan can do")
    parser.add_argument("--night-rate", type=float, default=None, help="requests a second at night, whatever it can do")
    parser.add_argument("--prompt-shrink", type=float, default=20.0, help="prompts are divided by this")
    parser.add_argument("--output-shrink", type=float, default=4.0, help="answers are divided by this")
    parser.add_argument("--runs", default="latency,throughput,scheduled")
    parser.add_argument("--engine", default=f"{sys.executable} -m engine.worker")
    parser.add_argument("--plot", type=Path, default=None, help="an SVG of all runs")
    asked = parser.parse_args(words)
    day = Day(asked.night_s, asked.day_s)
    lengths = Lengths(asked.prompt_shrink, asked.output_shrink)
    trace = read_trace(asked.trace)
    rate = asked.night_rate
    if rate is None:
        crowd = tide_of(trace[: CROWD * SPREAD : SPREAD], Day(0.0, 1e9), 1.0 / TIDE, lengths)
        rate = asked.fill * capacity(asked.gguf, crowd, asked.engine) / TIDE
    arrivals = tide_of(trace, day, rate, lengths)
    filled = {"fill": asked.fill} if asked.night_rate is None else {}
    opts = {**filled, "night_rate": round(rate, 3), "tide": TIDE, "night_s": day.night_s, "day_s": day.day_s}
    print(json.dumps({**provenance("tide"), "model": asked.gguf.name, "opts": opts}), flush=True)
    runs: list[dict[str, Any]] = []
    against: dict[str, Any] = {}
    for run in asked.runs.split(","):
        runs.append(one_run(asked.gguf, run, arrivals, day, asked.engine))
        against = held(runs)
        print(json.dumps({**runs[-1], **against}), flush=True)
    if asked.plot is not None:
        asked.plot.write_text(plot(runs, [one.at_s for one in arrivals], day.length_s), encoding="utf-8")
    return 1 if any(run["lost"] for run in runs) or not against.get("held", True) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
