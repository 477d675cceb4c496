"""The compressed day of bench.tide on the engine alone, in this process: for machines without the daemon's packages.

    python -m bench.tide_engine --trace FILE.csv --model llama-8b --device cuda:0 [--plot FILE.svg] > RESULT.jsonl

Random weights. The planner's pair of plans gives both ends' knobs and the shape that they share; the third run follows
the schedule at dawn and dusk and the load in between, by the daemon's own load controller on a clock that is as much
faster as the day is shorter. Nothing but knobs moves, so no move has a gap. The day fills --fill of what the throughput
plan can do, measured first. Prints provenance and one line a run, the last one with what must hold.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import hwdetect
from bench.provenance import provenance
from bench.random_weights import random_weights
from bench.shapes import SCALES, SHAPES, scaled, write_shape
from bench.tide_day import (
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
from daemon.planning.install import EngineInstall
from daemon.planning.live_bounds import LiveBounds
from daemon.planning.machine_budgets import budgets_of
from daemon.planning.plan import Planner
from daemon.planning.profile import Profile
from daemon.planning.strategy import Strategy
from daemon.planning.worker_config import worker_config
from daemon.strategy.load_controller import LoadController
from daemon.workers.states import WorkerState
from daemon.workers.view import WorkerView
from engine.builder import build_engine
from engine.core import EngineCore
from engine.devices import open_device
from engine.messages import FinishReason, Knobs, SamplingParams, Submit
from engine.spec import read_spec

TICK_S = 3.0  # of the controller's clock
CROWD = 768  # requests that the rate is found with
ENDS = (Strategy.LATENCY, Strategy.THROUGHPUT)


@dataclass(slots=True)
class Mine:
    """One request under way. Mutable."""

    arrival: Arrival
    tokens: int = 0
    ttft_s: float | None = None
    total_s: float = 0.0
    status: int = 0
    whole: bool = False


@dataclass(slots=True)
class Replay:
    """One run of the day. Owner: main."""

    core: EngineCore
    vocab: int
    begun: float = 0.0
    submitted: int = 0
    mine: dict[str, Mine] = field(default_factory=dict)
    moves: list[dict[str, Any]] = field(default_factory=list)

    def run(self, arrivals: Sequence[Arrival], tick: Tick) -> list[Answered]:
        """Blocks: until the last answer is there."""
        left = sorted(arrivals, key=lambda one: one.at_s)[::-1]
        numbers = random.Random(0)
        self.begun = time.perf_counter()
        while left or self.core.has_work():
            now = time.perf_counter() - self.begun
            while left and left[-1].at_s <= now:
                self._add(left.pop(), numbers)
            tick.look(self, now)
            if self.core.has_work():
                self._step()
            elif not self.core.prepare():
                time.sleep(min(0.002, max(0.0, (left[-1].at_s if left else now) - now)))
        return [Answered(one.arrival, one) for one in self.mine.values()]

    def _add(self, arrival: Arrival, numbers: random.Random) -> None:
        name = f"r{self.submitted}"
        self.submitted += 1
        self.mine[name] = Mine(arrival)
        prompt = [numbers.randrange(10, self.vocab - 10) for _ in range(arrival.prompt_words)]
        self.core.add(Submit(name, prompt, SamplingParams(arrival.output_tokens, temperature=0.0, ignore_eos=True)))

    def _step(self) -> None:
        report = self.core.step()
        at_s = time.perf_counter() - self.begun
        for delta in report.deltas:
            one = self.mine[delta.request_id]
            one.tokens += len(delta.token_ids)
            one.total_s = at_s - one.arrival.at_s
            if one.ttft_s is None and delta.token_ids:
                one.ttft_s = one.total_s
            if delta.finish is not None:
                one.whole = delta.finish is FinishReason.LENGTH
                one.status = 200 if one.whole else 500


class Tick:
    """Which knobs there are to be, from plan, hour and load."""

    def __init__(self, run: str, few: Profile, many: Profile, day: Day, faster: float) -> None:
        self._run, self._few, self._many, self._day = run, few, many, day
        self._faster = faster
        self._next_s = 0.0
        self._now_s = 0.0
        self._controller = LoadController(lambda: self._now_s * faster)
        self._bounds = LiveBounds(few.knobs, many.knobs)

    def look(self, replay: Replay, now_s: float) -> None:
        if now_s < self._next_s:
            return
        self._now_s, self._next_s = now_s, now_s + TICK_S / self._faster
        knobs, reason = self._wanted(replay, now_s)
        if knobs != replay.core.scheduler.knobs:
            replay.core.set_knobs(knobs)
            told = f"{knobs.max_running} streams, {knobs.prefill_chunk} prompt tokens a step"
            replay.moves.append({"at_s": round(now_s, 1), "how": "load", "gap_s": 0.0, "to": told, "reason": reason})

    def _wanted(self, replay: Replay, now_s: float) -> tuple[Knobs, str]:
        if self._run != "scheduled":
            return (self._few if self._run == "latency" else self._many).knobs, f"plan {self._run}"
        plan = self._many if self._day.phase(now_s) == "day" else self._few
        move = self._controller.knobs(replace(plan, bounds=self._bounds), _view(plan, replay))
        assert move is not None
        return move.knobs, move.reason


def _view(profile: Profile, replay: Replay) -> WorkerView:
    stats = replay.core.stats()
    return WorkerView(
        name="w", model=profile.model, state=WorkerState.READY, since_at=datetime.now(UTC), reason="",
        config=worker_config(profile), pid=1, ready=None, progress=None, stats=stats, step_age_s=0.0,
        inflight=stats.running + stats.waiting, restarts=0, restarts_24h=0, last_exit=None, last_log_lines=(),
        retry_in_s=None, log_path=Path(), submitted_total=replay.submitted,
    )  # fmt: skip


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.tide_engine", description=__doc__)
    parser.add_argument("--trace", type=Path, required=True)
    parser.add_argument("--model", required=True, choices=SHAPES)
    parser.add_argument("--scale", default="full", choices=SCALES)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--night-s", type=float, default=5.0)
    parser.add_argument("--day-s", type=float, default=10.0)
    parser.add_argument("--fill", type=float, default=0.85, help="the day's share of what the throughput plan can do")
    parser.add_argument(
        "--shrink", type=float, default=4.0, help="lengths are divided by so much, as the day is short too"
    )
    parser.add_argument("--faster", type=float, default=10.0, help="the controller's clock")
    parser.add_argument("--plot", type=Path, default=None)
    asked = parser.parse_args(words)
    with tempfile.TemporaryDirectory(prefix="bayard-shape-") as folder:
        path = Path(folder) / asked.model
        path.mkdir()
        write_shape(path, scaled(SHAPES[asked.model], asked.scale))
        spec = read_spec(path)
        budgets = [b for b in budgets_of(hwdetect.detect(), EngineInstall.here()) if b.device == asked.device]
        pair = Planner(budgets).pair(spec, ENDS)
        few, many = (pair[end].chosen for end in ENDS)
        if few is None or many is None:
            parser.error(f"{spec.name} does not fit {asked.device}")
        with random_weights(open_device(asked.device).torch_device):
            built = build_engine(worker_config(many), lambda *_: None)
        core = built.core
        assert isinstance(core, EngineCore)
        while core.prepare():
            pass
        return _days(asked, core, built.vocab_size, few, many)


def _days(asked: argparse.Namespace, core: EngineCore, vocab: int, few: Profile, many: Profile) -> int:
    day, trace = Day(asked.night_s, asked.day_s), read_trace(asked.trace)
    lengths = Lengths(asked.shrink, asked.shrink, min(4096, few.context_tokens // 2), 128)
    crowd = [replace(one, at_s=0.0) for one in tide_of(trace[:CROWD], Day(0.0, 1e9), 1.0 / TIDE, lengths)]
    for count in (8, len(crowd)):  # the first compiles what is left to compile
        answers = Replay(core, vocab).run(crowd[:count], Tick("throughput", few, many, day, asked.faster))
    rate = asked.fill * steady_rate(answers) / TIDE
    arrivals = tide_of(trace, day, rate, lengths)
    opts = {"fill": asked.fill, "night_rate": round(rate, 3), "tide": TIDE, "night_s": day.night_s, "day_s": day.day_s}
    model = {"model": f"{asked.model} with random weights, the engine alone"}
    print(json.dumps({**provenance("tide", asked.device), **model, "opts": opts}), flush=True)
    runs: list[dict[str, Any]] = []
    against: dict[str, Any] = {}
    for run in ("latency", "throughput", "scheduled"):
        replay = Replay(core, vocab)
        answers = replay.run(arrivals, Tick(run, few, many, day, asked.faster))
        ended = sorted((one.arrival.at_s + one.got.total_s, one.got.tokens) for one in answers if is_whole(one))
        found = {"run": run, **figures(answers, day), "moves": replay.moves}
        found["ended"] = [[round(at_s, 2), tokens] for at_s, tokens in ended]
        runs.append(found)
        against = held(runs)
        print(json.dumps({**found, **against}), flush=True)
    if asked.plot is not None:
        asked.plot.write_text(plot(runs, [one.at_s for one in arrivals], day.length_s), encoding="utf-8")
    return 0 if against["held"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
