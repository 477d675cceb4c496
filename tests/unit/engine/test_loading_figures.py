"""What a load costs: host memory that stays near what is kept, a progress figure, and a share of the disk's speed."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from engine.devices.disk import SAMPLE_BYTES, sequential_bytes_per_s
from engine.messages import WorkerReady, read_figures

CACHED = "; they were in the page cache"
MODEL_BYTES = 300_000_000
CHILD = """
import json, sys
import torch
from engine.messages import Knobs, WorkerConfig
from engine.builder import build_engine
def peak_kib():  # of this program: getrusage's goes back to the process that started it
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
before = peak_kib()
seen = []
knobs = Knobs(max_running=1)
config = WorkerConfig("w", "m", sys.argv[1], "", kv_tokens=256, max_context_tokens=128, threads=1, knobs=knobs)
built = build_engine(config, lambda stage, done, total: seen.append((stage, done, total)))
peak = peak_kib()
reading = [(done, total) for stage, done, total in seen if stage == "reading"]
print(json.dumps({"before": before, "peak": peak, "reading": reading, "bytes": built.read_bytes, "s": built.read_s}))
"""


def write_model(folder: Path) -> int:
    """A Llama of random bfloat16 numbers, written a tensor at a time; its bytes."""
    hidden, inner, layers, vocabulary = 1024, 4096, 8, 8192
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocabulary, hidden)}
    for i in range(layers):
        prefix = f"model.layers.{i}."
        for name in ("q", "k", "v", "o"):
            shapes[f"{prefix}self_attn.{name}_proj.weight"] = (hidden, hidden)
        shapes[f"{prefix}mlp.gate_proj.weight"] = shapes[f"{prefix}mlp.up_proj.weight"] = (inner, hidden)
        shapes[f"{prefix}mlp.down_proj.weight"] = (hidden, inner)
        shapes[f"{prefix}input_layernorm.weight"] = shapes[f"{prefix}post_attention_layernorm.weight"] = (hidden,)
    shapes |= {"model.norm.weight": (hidden,), "lm_head.weight": (vocabulary, hidden)}
    at, header = 0, {}
    for name, shape in shapes.items():
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    raw = json.dumps(header).encode()
    block = np.random.default_rng(1).integers(0x3C00, 0x3D00, 1 << 20, dtype=np.uint16).tobytes()  # small and finite
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(raw)) + raw)
        for left in range(at, 0, -len(block)):
            file.write(block[: min(left, len(block))])
    config = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": 16,
        "vocab_size": vocabulary,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return at


def test_load_keeps_host_memory_under_the_model_and_a_gigabyte_and_tells_its_progress(tmp_path):
    size = write_model(tmp_path)
    assert size > MODEL_BYTES
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path)], capture_output=True, text=True, check=True, timeout=120
    )
    found = json.loads(child.stdout.splitlines()[-1])
    assert found["peak"] * 1024 < size + (1 << 30), found
    assert (found["peak"] - found["before"]) * 1024 < 1.6 * size, found  # what is kept, a layer, and libraries
    done = [done for done, total in found["reading"] if total == size]
    assert done == sorted(done)
    assert done[-1] == size
    assert len(done) >= 8
    assert found["bytes"] == size
    assert found["s"] > 0


def test_disk_is_measured_past_the_cache_or_not_at_all(tmp_path):
    small, large = tmp_path / "small", tmp_path / "large"
    small.write_bytes(b"x" * 4096)
    assert sequential_bytes_per_s([str(small)]) is None
    assert sequential_bytes_per_s([]) is None
    with large.open("wb") as file:
        file.truncate(SAMPLE_BYTES + (1 << 20))
    rate = sequential_bytes_per_s([str(small), str(large)])
    try:
        os.close(os.open(large, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        assert rate is None
    else:
        assert rate is not None
        assert rate > 1e5


@pytest.mark.parametrize(
    ("read_s", "disk", "told"),
    [
        (0.0, None, "unknown"),
        (2.0, None, "100 MB in 2.00 s, 50 MB/s"),
        (2.0, 2e8, "100 MB in 2.00 s, 50 MB/s, 25% of the disk's 200 MB/s in sequence"),
        (
            0.1,
            2e8,
            "100 MB in 0.10 s, 1,000 MB/s, 500% of the disk's 200 MB/s in sequence" + CACHED,
        ),
    ],
)
def test_read_figures_compare_with_the_disk_where_it_is_known(read_s, disk, told):
    ready = WorkerReady(3, 1, "m", "cpu", 8, 0, 0, 1.0, read_bytes=100_000_000, read_s=read_s, disk_bytes_per_s=disk)
    assert read_figures(ready) == told


def test_time_that_rounding_takes_is_not_called_the_disks():
    ready = WorkerReady(3, 1, "m", "cpu", 8, 0, 0, 1.0, read_bytes=100_000_000, read_s=16.0, disk_bytes_per_s=1e9)
    told = "100 MB read and rounded to int8 in 16.00 s; to read them takes 0.10 s at the disk's speed"
    assert read_figures(ready, "int8") == told
