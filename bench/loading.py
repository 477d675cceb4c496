"""How fast a checkpoint's weights get to a device: `python -m bench.loading --model llama-8b --device cuda:0`.

A real safetensors folder of a known shape, its numbers a random block over and over, is written first and so lies in
the page cache; the ordinary loader reads it. A new map of the files each time, as at a start. Beside the link's own
rate: pinned memory to the device. At last a process of its own, from its start to the first token of a prompt. JSON
lines, the first says where they come from.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from bench.provenance import provenance
from bench.shapes import SCALES, SHAPES, scaled, write_shape
from engine.devices import Device, open_device
from engine.devices.upload import prepare
from engine.models import load_model
from engine.spec import read_spec

BLOCK_BYTES = 64 << 20
LINK_BYTES = 1 << 30
STANDARD_DEVIATION = 0.02

FIRST_TOKEN = """
import sys, time
began = time.time() - float(sys.argv[3])
import json
import os
from engine.builder import build_engine
from engine.core import EngineCore
from engine.messages import Knobs, SamplingParams, Submit, WorkerConfig
imported = time.time() - float(sys.argv[3])
knobs = Knobs(max_running=4, token_budget=512, prefill_chunk=512)
folder, device = sys.argv[1:3]
config = WorkerConfig("w", "m", folder, "", device=device, kv_tokens=4096, max_context_tokens=2048, knobs=knobs)
built = build_engine(config, lambda stage, done, total: None)
ready = time.time() - float(sys.argv[3])
core = built.core
assert isinstance(core, EngineCore)
core.add(Submit("r", list(range(5, 69)), SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)))
deltas = []
while core.has_work():
    deltas += core.step().deltas
assert deltas and all(delta.error is None for delta in deltas), deltas
done = time.time() - float(sys.argv[3])
print(json.dumps({"imported_s": imported, "read_s": built.read_s, "ready_s": ready, "first_token_s": done}))
"""


def write_model(folder: Path, model: str, scale: str, layers: int) -> int:
    """The folder, with bytes in it; how many."""
    config = scaled(SHAPES[model], scale)
    if layers:
        config = {**config, "num_hidden_layers": min(layers, config["num_hidden_layers"])}
    write_shape(folder, config)
    path = folder / "model.safetensors"
    block = torch.randn(BLOCK_BYTES // 2, generator=torch.Generator().manual_seed(0)) * STANDARD_DEVIATION
    content = block.to(torch.bfloat16).view(torch.uint8).numpy().data
    with path.open("r+b") as file:
        start = 8 + int.from_bytes(file.read(8), "little")
        end = path.stat().st_size

        def write(at: int) -> None:
            done = 0
            wanted = min(BLOCK_BYTES, end - at)
            while done < wanted:
                done += os.pwrite(file.fileno(), content[done:wanted], at + done)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(write, range(start, end, BLOCK_BYTES)))
    return end - start


def link_bytes_per_s(device: Device) -> float | None:
    """Pinned memory to the device, the best of three. None: there is no link."""
    if device.torch_device.type == "cpu":
        return None
    host = torch.empty(LINK_BYTES, dtype=torch.uint8, pin_memory=True)
    there = torch.empty(LINK_BYTES, dtype=torch.uint8, device=device.torch_device)
    best = 0.0
    for _ in range(3):
        device.synchronize()
        began = time.perf_counter()
        there.copy_(host, non_blocking=True)
        device.synchronize()
        best = max(best, LINK_BYTES / (time.perf_counter() - began))
    return best


def load_s(folder: Path, device: Device) -> float:
    """Seconds until all weights are on the device and packed."""
    prepare(device.torch_device)  # as a worker does, which reads its model's description meanwhile
    spec = read_spec(folder)
    device.synchronize()
    began = time.perf_counter()
    model = load_model(
        spec,
        device.torch_device,
        device.default_dtype,
        lambda done, total: None,
        capabilities=device.capabilities.names(),
        max_context_tokens=2048,
    )
    device.synchronize()
    took = time.perf_counter() - began
    del model
    gc.collect()
    device.release_unused()
    return took


def first_token(folder: Path, device: str) -> dict[str, float]:
    """Seconds since a new process was started."""
    words = [sys.executable, "-W", "ignore", "-c", FIRST_TOKEN, str(folder), device, str(time.time())]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=300)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return {name: round(value, 3) for name, value in found.items()}


def measure(folder: Path, arguments: argparse.Namespace) -> None:
    began = time.perf_counter()
    size = write_model(folder, arguments.model, arguments.scale, arguments.layers)
    wrote_s = time.perf_counter() - began
    device = open_device(arguments.device)
    link = link_bytes_per_s(device)
    for turn in range(arguments.times):
        took = load_s(folder, device)
        line = {
            "fig": "load",
            "turn": turn,
            "bytes": size,
            "s": round(took, 3),
            "gb_s": round(size / took / 1e9, 1),
            "link_gb_s": None if link is None else round(link / 1e9, 1),
            "share": None if link is None else round(size / took / link, 3),
        }
        print(json.dumps(line), flush=True)
    if arguments.first_token:
        line = {"fig": "first token", "bytes": size, "wrote_s": round(wrote_s, 2)}
        found = first_token(folder, arguments.device)
        share = None if link is None else round(size / found["read_s"] / link, 3)
        print(json.dumps(line | found | {"read_share": share}), flush=True)


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.loading", description=__doc__)
    add = parser.add_argument
    add("--model", default="llama-8b", choices=SHAPES)
    add("--scale", default="full", choices=SCALES)
    add("--layers", default=0, type=int, help="no more than so many; 0: all")
    add("--device", default="cpu")
    add("--times", default=3, type=int, help="loads in this process; the first also loads the modules of kernels")
    add("--folder", default=None, type=Path, help="where the model is written; its file system's cache is what is read")
    add("--first-token", default=True, action=argparse.BooleanOptionalAction)
    arguments = parser.parse_args(words)
    shown = {"scale": arguments.scale, "layers": arguments.layers or "all"}
    origin = provenance("loading", arguments.device)
    print(json.dumps({**origin, "model": arguments.model, "opts": shown}), flush=True)
    with tempfile.TemporaryDirectory(prefix="bayard-loading-", dir=arguments.folder) as folder:
        measure(Path(folder), arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
