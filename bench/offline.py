"""Decode latency, prefill and throughput of the engine alone: `python -m bench.offline --model llama-8b`.

The workload is fixed, so that figures of different engines can be compared: greedy, no prefix cache, end-of-sequence
ignored, prompts of random ids from one seed. Decode is the slope between 32 and 160 output tokens after 256-token
prompts, best of two; prefill is one prompt with one output token, best of three; throughput is 256 requests of
100 to 1,024 tokens in and out. On request: gap, the longest time between two tokens of running streams while a long
prompt enters, steady, what the allocator was asked in 50 decode steps, and profile, where a step's time goes. One JSON
line a figure, the first says where they come from.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

import msgspec

from bench.provenance import provenance
from bench.random_weights import mxfp4, random_weights
from bench.shapes import SCALES, SHAPES, scaled, write_shape
from bench.steadiness import longest_gap, steady_allocations
from bench.step_parts import profiled_decode, profiled_prefill
from engine.builder import BuiltEngine, build_engine
from engine.core import EngineCore
from engine.devices import open_device
from engine.errors import BayardError
from engine.messages import FinishReason, Knobs, SamplingParams, Submit, WorkerConfig
from engine.spec.precision import WeightPrecision

LOW_ID, HIGH_ID = 1000, 100_000  # prompt ids, cut to the vocabulary where it is smaller


class OfflineEngine:
    """The engine's own step loop, without a process or a border around it."""

    def __init__(self, built: BuiltEngine, sampling: dict[str, float] | None = None) -> None:
        assert isinstance(built.core, EngineCore), "an encoder writes nothing"
        self.core = built.core
        self.device = built.device
        self._count = 0
        self._sampling = {"temperature": 0.0, **(sampling or {})}

    def run(self, prompts: list[list[int]], outputs: list[int]) -> tuple[float, int]:
        """(seconds, output tokens) of running all of it at once.

        Raises: BayardError when a request does not end at its length
        """
        begun = time.perf_counter()
        for prompt, max_tokens in zip(prompts, outputs, strict=True):
            self._count += 1
            asked = {**self._sampling, "max_tokens": max_tokens, "ignore_eos": True, "seed": self._count}
            sampling = msgspec.convert(asked, SamplingParams)
            self.core.add(Submit(f"r{self._count}", prompt, sampling))
        produced = 0
        while self.core.has_work():
            for delta in self.core.step().deltas:
                produced += len(delta.token_ids)
                if delta.finish not in (None, FinishReason.LENGTH):
                    raise BayardError(f"A request ended with {delta.finish}: {delta.error}")
        return time.perf_counter() - begun, produced


def run_lengths(count: int) -> tuple[list[int], list[int]]:
    """Prompt and output tokens of a run's requests: those that the peers' runs have, whatever else is measured here.

    Their lengths come from the generator that the prompts of their decode and prefill figures came from.
    """
    rng = random.Random(0)
    before = [64, *[256] * (4 * sum((1, 8, 32, 64, 128, 256))), *[2048] * 3, *[8000] * 3]
    for _ in range(sum(before)):
        rng.randrange(LOW_ID, HIGH_ID)
    inputs = [rng.randint(100, 1024) for _ in range(count)]
    return inputs, [rng.randint(100, 1024) for _ in range(count)]


def measure(engine: OfflineEngine, arguments: argparse.Namespace, vocab_size: int) -> None:
    """Print the figures asked for."""
    rng = random.Random(0)
    high = min(HIGH_ID, vocab_size)
    low = min(LOW_ID, high - 1)

    def prompt(tokens: int) -> list[int]:
        return [rng.randrange(low, high) for _ in range(tokens)]

    def show(**figure: object) -> None:
        print(json.dumps({"model": Path(arguments.model).name, **figure}), flush=True)

    engine.run([prompt(64)] * 2, [8] * 2)
    while arguments.idle_first and engine.core.prepare():
        pass
    short, long = arguments.outputs
    if "latency" in arguments.do:
        for batch in arguments.batches:
            times = []
            for tokens in (short, long):
                runs = [
                    engine.run([prompt(arguments.prompt) for _ in range(batch)], [tokens] * batch) for _ in range(2)
                ]
                times.append(min(runs)[0])
            slope_s = (times[1] - times[0]) / (long - short)
            show(fig="decode", batch=batch, ms_per_step=round(slope_s * 1e3, 3), tok_s=round(batch / slope_s, 1))
        for tokens in arguments.prefills:
            seconds, _ = min(engine.run([prompt(tokens)], [1]) for _ in range(3))
            show(fig="prefill", tokens=tokens, ms=round(seconds * 1e3, 2), tok_s=round(tokens / seconds))
    if "gap" in arguments.do:
        for batch in arguments.gap_batches:
            streams = [prompt(arguments.prompt) for _ in range(batch)]
            for limit_ms in arguments.max_step_ms:
                gap = longest_gap(engine.core, streams, prompt(arguments.entering), limit_ms)
                show(fig="gap", batch=batch, entering=arguments.entering, max_step_ms=limit_ms, **asdict(gap))
    if "steady" in arguments.do:
        for batch in arguments.gap_batches:
            streams = [prompt(arguments.prompt) for _ in range(batch)]
            counts = steady_allocations(engine.core, engine.device, streams)
            show(fig="steady", batch=batch, steps=50, allocated=counts)
    if "profile" in arguments.do:
        for batch in arguments.batches:
            streams = [prompt(arguments.prompt) for _ in range(batch)]
            parts = profiled_decode(engine.core, engine.device, streams)
            show(fig="profile", of="decode", batch=batch, context=arguments.prompt, **parts)
        for tokens in arguments.prefills:
            parts = profiled_prefill(engine.core, engine.device, [prompt(tokens) for _ in range(3)])
            show(fig="profile", of="prefill", tokens=tokens, **parts)
    if "throughput" in arguments.do:
        count = arguments.nreq
        if arguments.longin:
            inputs, outputs = [arguments.longin] * count, [arguments.longout] * count
        else:
            inputs, outputs = run_lengths(count)
        seconds, produced = engine.run([prompt(tokens) for tokens in inputs], outputs)
        show(
            fig="throughput",
            nreq=count,
            inputs=sum(inputs),
            outputs=produced,
            longest_out=max(outputs),
            s=round(seconds, 2),
            out_tok_s=round(produced / seconds, 1),
            total_tok_s=round((produced + sum(inputs)) / seconds, 1),
        )


MXFP4 = "mxfp4"  # what checkpoints may have, and loading does not round to


def build(arguments: argparse.Namespace, folder: Path) -> BuiltEngine:
    """The engine with a file's weights, or a shape's random ones. Raises: BayardError."""
    shape = SHAPES.get(arguments.model)
    if shape is None and not Path(arguments.model).exists():
        raise BayardError(f"There is no shape or file {arguments.model}.", f"Shapes are {', '.join(SHAPES)}.")
    folder = folder / Path(arguments.model).name
    if shape is not None:
        folder.mkdir()
        write_shape(folder, scaled(shape, arguments.scale))
    config = WorkerConfig(
        worker_id="bench",
        model_name=arguments.model,
        model_path=str(folder if shape is not None else arguments.model),
        endpoint="",
        device=arguments.device,
        dtype=arguments.dtype,
        activation=arguments.activation,
        weights="fp4" if arguments.weights == MXFP4 else arguments.weights,
        kv_tokens=arguments.kv_tokens,
        kv_bytes=arguments.kv_bytes,
        max_context_tokens=arguments.context,
        threads=arguments.threads,
        knobs=Knobs(
            max_running=arguments.max_running,
            token_budget=arguments.budget,
            prefill_chunk=arguments.budget,
            prefix_cache=False,
            ahead_tokens=256,
        ),
    )
    weights = nullcontext() if shape is None else random_weights(open_device(arguments.device).torch_device)
    with weights, mxfp4() if arguments.weights == MXFP4 else nullcontext():
        return build_engine(config, lambda stage, done, total: None)


def parse(words: list[str]) -> argparse.Namespace:
    def numbers(text: str) -> list[int]:
        return [int(word) for word in text.split(",")]

    parser = argparse.ArgumentParser(prog="python -m bench.offline", description=__doc__)
    add = parser.add_argument
    add("--model", required=True, help=f"a GGUF file or Hugging Face folder, or a shape: {', '.join(SHAPES)}")
    add("--device", default="cpu")
    add("--scale", default="full", choices=SCALES, help="a smaller sister of the shape")
    add("--do", default="latency,throughput", type=lambda text: text.split(","))
    add("--dtype", default="auto")
    add("--activation", default="exact", choices=("exact", "int8", "fp8"))
    add("--weights", default="stored", choices=(*WeightPrecision, MXFP4), help="what matrices are rounded to at load")
    add("--threads", default=0, type=int, help="CPU threads; 0: all")
    add("--context", default=8192, type=int, help="longest sequence")
    add("--kv-tokens", default=0, type=int, help="KV cache; 0: what memory allows")
    add("--kv-bytes", default=0, type=int, help="the same in bytes")
    add("--sampling", default={}, type=json.loads, help="JSON: temperature, top_p, penalties ...; greedy without")
    add("--max-running", default=256, type=int)
    add("--idle-first", action="store_true", help="measure what has been idle: all that a worker captures then")
    add("--budget", default=8192, type=int, help="tokens a step")
    add("--batches", default=[1, 8, 32, 64, 128, 256], type=numbers)
    add("--prompt", default=256, type=int, help="prompt tokens of the decode figures")
    add("--outputs", default=[32, 160], type=numbers, help="the two output lengths of the decode slope")
    add("--prefills", default=[2048, 8000], type=numbers)
    add("--entering", default=8000, type=int, help="prompt tokens that enter while streams run (gap)")
    add("--gap-batches", default=[1, 32], type=numbers, help="streams that run then (gap, steady)")
    add("--max-step-ms", default=[0, 40, 100], type=numbers, help="limits of a step then; 0: none (gap)")
    add("--nreq", default=256, type=int)
    add("--longin", default=0, type=int, help="prompt tokens of every throughput request")
    add("--longout", default=128, type=int)
    arguments = parser.parse_args(words)
    arguments.batches = [batch for batch in arguments.batches if batch <= arguments.max_running]
    if len(arguments.outputs) != 2 or arguments.outputs[0] >= arguments.outputs[1]:
        parser.error("--outputs takes two lengths, the shorter first")
    return arguments


def main(words: list[str]) -> int:
    arguments = parse(words)
    begun = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="bayard-shape-") as folder:
            built = build(arguments, Path(folder))
            while built.core.prepare():
                pass
            start_s = round(time.monotonic() - begun, 1)
            origin = provenance("offline", arguments.device, words)
            shown = {"scale": arguments.scale, "dtype": arguments.dtype, "activation": arguments.activation}
            shown |= {"weights": arguments.weights}
            shown |= {"sampling": json.dumps(arguments.sampling)} if arguments.sampling else {}
            kernels = {"kernels": built.kernels, "notes": built.notes}
            print(
                json.dumps(
                    {**origin, "model": Path(arguments.model).name, "opts": shown, "start_s": start_s, **kernels}
                ),
                flush=True,
            )
            measure(OfflineEngine(built, arguments.sampling), arguments, built.vocab_size)
    except BayardError as error:
        print(json.dumps({"model": arguments.model, "refused": str(error)}), flush=True)
        print(f"{arguments.model}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
