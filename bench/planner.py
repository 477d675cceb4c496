"""The planner's word against the engine: predicted and measured memory and speed of one model on this machine.

    python -m bench.planner --model FILE|SHAPE [--device cpu] [--weights stored,int8,int4] [--strategy throughput]
        [--context 8192] [--seconds 15]

A shape of bench.shapes gets random weights; for a CPU they are written to a folder once (--folder keeps it), since a
worker maps its weights. Calibrates first, then loads the model exactly as the chosen profile says and runs it, each
precision of its weights in a process of its own. Prints provenance with the rates and one JSON line a precision. Needs
an otherwise idle machine: a calibration that was disturbed predicts a disturbed engine.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from statistics import median
from typing import Any

import torch

import hwdetect
from bench.provenance import provenance
from bench.random_weights import fill_shape, random_weights
from bench.shapes import SCALES, SHAPES, scaled, write_shape
from daemon.planning.budget import DeviceBudget
from daemon.planning.calibrate import kinds_for, measure
from daemon.planning.fit import KV_PAGES, FitModel
from daemon.planning.install import EngineInstall
from daemon.planning.kv_bytes import element_bytes
from daemon.planning.machine_budgets import budgets_of
from daemon.planning.plan import Planner, Request
from daemon.planning.profile import Profile
from daemon.planning.rates import DeviceRates
from daemon.planning.speed import SpeedModel, StepTime
from daemon.planning.strategy import Strategy
from daemon.planning.traffic import traffic_of
from daemon.planning.worker_config import worker_config
from engine.builder import BuiltEngine, build_engine
from engine.devices import open_device
from engine.messages import SamplingParams, Submit
from engine.spec import read_spec
from engine.spec.loaded import loaded_spec
from engine.spec.model_spec import ModelSpec

PROMPT_TOKENS = 256
OUTPUT_TOKENS = 48


def run(engine: BuiltEngine, streams: int, vocab: int, seed: int) -> tuple[float, list[float]]:
    """(prefill seconds of all prompts, seconds of each step in which every stream decodes)."""
    numbers = random.Random(seed)
    for i in range(streams):
        prompt = [numbers.randrange(10, vocab - 10) for _ in range(PROMPT_TOKENS)]
        sampling = SamplingParams(max_tokens=OUTPUT_TOKENS * 2, temperature=0.0, ignore_eos=True)
        engine.core.add(Submit(f"{seed}-{i}", prompt, sampling))
    prefill_s = 0.0
    decode: list[float] = []
    while engine.core.has_work() and len(decode) < OUTPUT_TOKENS:
        began = time.perf_counter()
        report = engine.core.step()
        elapsed = time.perf_counter() - began
        if sum(len(delta.token_ids) for delta in report.deltas) == streams and prefill_s > 0:
            decode.append(elapsed)
        else:
            prefill_s += elapsed
    engine.core.abort_all()
    while engine.core.has_work():
        engine.core.step()
    return prefill_s, decode


def held_bytes(*, own: bool) -> int:
    """Resident memory of this process that is anonymous, or (own) pages of files that are no model's.

    A model's own pages are the system's: it takes them back when memory is short, and how many of the neighbours of a
    row that was read are mapped depends on how the file came into the page cache.
    """
    if not own:
        status = Path("/proc/self/status").read_text()
        return int(status.partition("RssAnon:")[2].split(maxsplit=1)[0]) << 10
    found, counts = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, _, rest = line.partition(" ")
        if "-" in name and not name.endswith(":"):
            counts = not line.endswith((".safetensors", ".gguf"))
        elif counts and name in ("Rss:", "Anonymous:"):
            found += (int(rest.split()[0]) << 10) * (1 if name == "Rss:" else -1)
    return found


def memory(
    profile: Profile, spec: ModelSpec, engine: BuiltEngine, held_before: int, loading_peak: int
) -> tuple[int, int]:
    """(predicted for the pages that were touched, measured) peak bytes."""
    stats = engine.core.stats()
    fit = FitModel(
        spec, traffic_of(spec), profile.device == "cpu", profile.dtype, profile.kv_dtype, profile.page_tokens
    )
    if profile.device == "cpu":
        touched = (stats.kv_pages_active + stats.kv_pages_cached) * fit.page_bytes
        measured = max(loading_peak, held_bytes(own=False)) + held_bytes(own=True)
        return profile.memory.total_bytes - profile.memory.of(KV_PAGES) + touched, measured
    # Of the whole device: what a context and its libraries hold is in no allocator's figures.
    free, total = torch.cuda.mem_get_info(engine.device.torch_device)
    return profile.memory.total_bytes, total - free - held_before


def compare(
    profile: Profile, spec: ModelSpec, rates: DeviceRates, held_before: int, weights: AbstractContextManager[None]
) -> dict[str, Any]:
    began = time.perf_counter()
    loading_peak = 0

    def look(*_: object) -> None:
        nonlocal loading_peak
        loading_peak = max(loading_peak, held_bytes(own=False))

    with weights:
        engine = build_engine(worker_config(profile), look)
    while engine.core.prepare():
        pass
    load_s = time.perf_counter() - began
    spec = loaded_spec(spec, profile.weights, on_cpu=profile.device == "cpu", activation=profile.activation)
    speed = SpeedModel(spec, traffic_of(spec), rates, element_bytes(spec, profile.kv_dtype))
    context = PROMPT_TOKENS + OUTPUT_TOKENS / 2
    run(engine, 1, spec.vocab_size, 0)  # warm
    rows: dict[str, Any] = {}
    streams = min(profile.knobs.max_running, 8)
    for name, count in (("alone", 1), ("together", streams)):
        prefill_s, steps = run(engine, count, spec.vocab_size, count)
        predicted_s = speed.step(count, 0, context).total_s
        rows[name] = {
            "streams": count,
            "step_ms": median(steps) * 1e3,
            "best_step_ms": min(steps) * 1e3,  # far below the median: the machine was not idle
            "predicted_step_ms": predicted_s * 1e3,
            "parts_ms": step_parts(speed.step(count, 0, context)),
            "predicted_over_measured_speed": median(steps) / predicted_s,
            "prefill_tok_s": count * PROMPT_TOKENS / prefill_s,
        }
    predicted_bytes, measured_bytes = memory(profile, spec, engine, held_before, loading_peak)
    rows["memory"] = {
        "predicted_bytes": predicted_bytes,
        "measured_bytes": measured_bytes,
        "predicted_over_measured": predicted_bytes / measured_bytes,
    }
    rows["memory"]["items"] = {item.name: item.size_bytes for item in profile.memory.items}
    kept = {"kv_dtype": profile.kv_dtype, "kv_tokens": profile.kv_tokens, "load_s": round(load_s, 1)}
    return {**rows, **kept, "kernels": engine.kernels}


def step_parts(step: StepTime) -> dict[str, float]:
    """Milliseconds"""
    return {
        "weights": round(step.weights_s * 1e3, 3),
        "attention": round(step.attention_s * 1e3, 3),
        "overhead": round(step.overhead_s * 1e3, 3),
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.planner", description=__doc__)
    parser.add_argument("--model", required=True, help=f"a GGUF file or folder, or a shape: {', '.join(SHAPES)}")
    parser.add_argument("--scale", default="full", choices=SCALES, help="a smaller sister of the shape")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--strategy", type=Strategy, default=Strategy.THROUGHPUT)
    parser.add_argument("--context", type=int, default=None)
    parser.add_argument("--seconds", type=float, default=15.0, help="of calibration")
    parser.add_argument("--weights", default="stored", type=lambda text: text.split(","), help="precisions, by comma")
    parser.add_argument("--rates", type=Path, default=None, help="rates that an earlier run has measured")
    parser.add_argument("--folder", type=Path, default=None, help="where a shape's files are, or are to stay")
    options = parser.parse_args(arguments)
    if options.folder is not None:
        options.folder.mkdir(parents=True, exist_ok=True)
        return judge(parser, options, options.folder)
    with tempfile.TemporaryDirectory(prefix="bayard-shape-") as folder:
        return judge(parser, options, Path(folder))


def judge(parser: argparse.ArgumentParser, options: argparse.Namespace, folder: Path) -> int:
    path = Path(options.model)
    if options.model in SHAPES:
        path = folder / options.model
    if options.model in SHAPES and not path.exists():
        path.mkdir(parents=True)
        write_shape(path, scaled(SHAPES[options.model], options.scale))
        if options.device == "cpu":
            fill_shape(path, scaled(SHAPES[options.model], options.scale))
    spec = read_spec(path)
    budgets = [b for b in budgets_of(hwdetect.detect(), EngineInstall.here()) if b.device == options.device]
    if not budgets or budgets[0].unusable is not None:
        parser.error(f"{options.device} cannot be used: {budgets[0].unusable if budgets else 'it was not found'}")
    if options.rates is None:
        kinds = kinds_for(
            budgets[0].on_cpu, [kind for one in options.weights for kind in kinds_of(spec, one, budgets[0])]
        )
        rates = measure(budgets[0], budgets[0].cores, options.seconds, kinds)
        origin = {**provenance("planner", options.device), "model": spec.name}
        print(json.dumps({**origin, "device": options.device, "rates": rates.to_json()}), flush=True)
        return each_by_itself(options, rates, folder)
    rates = DeviceRates.from_json(json.loads(options.rates.read_text()))
    (weights,) = options.weights
    request = Request(options.strategy, context_tokens=options.context, device=options.device, weights=weights)
    answer = Planner(budgets, rates=lambda budget: rates).answer(spec, request)
    if answer.chosen is None:
        parser.error(answer.why_not[0].reason)
    filled: AbstractContextManager[None] = nullcontext()
    if options.model in SHAPES and options.device != "cpu":
        filled = random_weights(open_device(options.device).torch_device)
    total = budgets[0].total_bytes or 0
    held_before = 0 if options.device == "cpu" else total - min(size for _, size in budgets[0].limits)
    found = compare(answer.chosen, spec, rates, held_before, filled)
    print(json.dumps({"model": spec.name, "device": options.device, "weights": weights, **found}), flush=True)
    return 0


def each_by_itself(options: argparse.Namespace, rates: DeviceRates, folder: Path) -> int:
    """Peak memory is a process's: each precision has its own. Returns: the first exit status that is not 0"""
    measured = folder / "rates.json"
    measured.write_text(json.dumps(rates.to_json()))
    status = 0
    for weights in options.weights:
        command = [sys.executable, "-m", "bench.planner", "--model", options.model, "--scale", options.scale]
        command += ["--device", options.device, "--strategy", options.strategy, "--weights", weights]
        command += ["--rates", str(measured), "--folder", str(folder)]
        if options.context is not None:
            command += ["--context", str(options.context)]
        status = status or subprocess.run(command, check=False, env=dict(os.environ)).returncode
    return status


def kinds_of(spec: ModelSpec, weights: str, budget: DeviceBudget) -> list[str]:
    """Every kind of matrix in the model as it is loaded, the one with most bytes first."""
    traffic = traffic_of(loaded_spec(spec, weights, on_cpu=budget.on_cpu))
    shares = [*traffic.dense, *traffic.experts, *([traffic.head] if traffic.head else [])]
    return list(dict.fromkeys(share.kind for share in sorted(shares, key=lambda share: -share.size_bytes)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
