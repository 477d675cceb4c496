"""What a decode step costs beside its kernels: `python -m bench.step --gguf FILE [--threads 1]`.

One sequence through the engine's own loop. Processor time of the calling thread, so that a busy machine does not count:
all of a step, and what of it the C++ library took. The rest is Python's share. One JSON line.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from bench.provenance import provenance
from engine.builder import build_engine
from engine.core import EngineCore
from engine.kernels.cpu import library
from engine.messages import Knobs, SamplingParams, Submit, WorkerConfig

WARM_STEPS, STEPS = 20, 200
NATIVE = ("bayard_program_run", "bayard_argmax")


class NativeTime:
    """Stands in for functions of the library and adds up how long they took."""

    def __init__(self) -> None:
        self.spent_s = 0.0
        loaded = library.load()
        for name in NATIVE:
            setattr(loaded, name, self._timed(getattr(loaded, name)))

    def _timed(self, function: Callable[..., int]) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            began = time.thread_time()
            code = function(*arguments)
            self.spent_s += time.thread_time() - began
            return code

        return call


def engine(path: Path, threads: int) -> EngineCore:
    knobs = Knobs(max_running=4, token_budget=520, prefill_chunk=512, prefix_cache=False)
    config = WorkerConfig(
        "bench", path.stem, str(path), "", kv_tokens=2048, max_context_tokens=1024, threads=threads, knobs=knobs
    )
    core = build_engine(config, lambda stage, done, total: None).core
    assert isinstance(core, EngineCore), "an encoder has no decode steps"
    return core


def measure(core: EngineCore) -> dict[str, float]:
    native = NativeTime()
    length = WARM_STEPS + STEPS + 8
    core.add(Submit("one", [5] * 8, SamplingParams(max_tokens=length, temperature=0.0, ignore_eos=True)))
    steps, inside = [], []
    for at in range(WARM_STEPS + STEPS):
        before, began = native.spent_s, time.thread_time()
        core.step()
        if at >= WARM_STEPS:
            steps.append(time.thread_time() - began)
            inside.append(native.spent_s - before)
    step_s, outside_s = median(steps), median(step - part for step, part in zip(steps, inside, strict=True))
    return {
        "step_ms": round(step_s * 1e3, 3),
        "outside_ms": round(outside_s * 1e3, 3),
        "outside_share": round(outside_s / step_s, 4),
    }


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.step", description=__doc__)
    parser.add_argument("--gguf", required=True, type=Path)
    parser.add_argument("--threads", default=1, type=int)
    arguments = parser.parse_args(words)
    if not arguments.gguf.is_file():
        parser.error(f"there is no file {arguments.gguf}")
    if (reason := library.absent_reason()) is not None:
        print(f"The CPU library is not here: {reason}", file=sys.stderr)
        return 1
    figures = measure(engine(arguments.gguf, arguments.threads))
    origin = {**provenance("step"), "opts": {"gguf": arguments.gguf.name, "threads": arguments.threads}}
    print(json.dumps({**figures, "origin": origin}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
