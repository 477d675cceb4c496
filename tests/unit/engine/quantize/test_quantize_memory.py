"""How much host memory quantising takes, with a text as without one: no more than two layers in float32."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers

WIDTH, INNER, TOKENS = 1024, 4096, 512
LAYER_BYTES = 4 * (4 * WIDTH * WIDTH + 3 * WIDTH * INNER)

# In a process of its own, whose memory is nobody else's. Peaks are over what it holds once it has imported all.
MEASURED = """
import json, sys, threading, time
from pathlib import Path
import torch
from engine.devices.host_heap import keep_nothing_large
from engine.quantize import job
from engine.spec.precision import WeightPrecision
from tests.fakes.known_tokens import KnownTokens

def held_bytes():
    status = Path("/proc/self/status").read_text()
    return int(status.partition("RssAnon:")[2].split(maxsplit=1)[0]) << 10

def watch():
    global peak
    while True:
        peak = max(peak, held_bytes())
        time.sleep(0.001)

def report(stage, done, total):
    if stage == "quantising" and done == last:
        raise KeyboardInterrupt

model, out, tokens, runs = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])
torch.set_num_threads(1)
keep_nothing_large()
job.load_text = lambda spec: KnownTokens([7 * n % 90 for n in range(tokens)])
base = peak = held_bytes()
threading.Thread(target=watch, daemon=True).start()
peaks = []
for number, (precision, text, last) in enumerate(runs):
    peak = 0
    try:
        job.quantize(job.QuantizeJob(model, WeightPrecision(precision), out / str(number), text), report)
    except KeyboardInterrupt:
        pass
    peaks.append(peak - base)
print(json.dumps(peaks))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peaks are read from /proc")
def test_quantising_holds_no_more_than_two_layers(tmp_path: Path) -> None:
    config = transformers.LlamaConfig(
        vocab_size=96,
        hidden_size=WIDTH,
        intermediate_size=INNER,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=8,
        max_position_embeddings=512,
    )
    torch.manual_seed(3)
    plain = tmp_path / "plain"
    transformers.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(plain)
    # To what, from which text, and how many of the two layers.
    runs = [("int8", "", 2), ("int8-mixed", "some text", 2), ("int4", "some text", 1)]
    words = [sys.executable, "-c", MEASURED, str(plain), str(tmp_path), str(TOKENS), json.dumps(runs)]
    run = subprocess.run(words, capture_output=True, text=True, check=True, timeout=120)
    layers = [peak / LAYER_BYTES for peak in json.loads(run.stdout)]
    assert 0 < min(layers) <= max(layers) <= 2.0, layers
