"""GGUF models: the real small one beside transformers reading the same file, and random ones written to files."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from engine.models import Model
from engine.spec import read_spec
from engine.text.loading import load_text

PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n",
    "Once upon a time, in a village by the sea,",
    "Water boils at",
    "List three primary colours:\n1.",
)
NEW_TOKENS = 64
NEW_TOKENS_SLOW = 3  # plain torch decodes every weight again each step
MEBIBYTE = 1 << 20


@pytest.fixture(scope="module")
def truth(smollm_path: Path) -> Any:
    """What transformers makes of the same file, in float32."""
    return transformers.AutoModelForCausalLM.from_pretrained(
        smollm_path.parent, gguf_file=smollm_path.name, dtype=torch.float32
    ).eval()


@pytest.fixture(scope="module")
def prompt_ids(smollm_path: Path) -> list[list[int]]:
    text = load_text(read_spec(smollm_path))
    return [text.encode(prompt) for prompt in PROMPTS]


def test_smollm_logits_and_greedy_tokens_match_transformers(
    smollm_path: Path,
    truth: Any,
    prompt_ids: list[list[int]],
    kernels: str,
    load: Callable[..., Model],
    harness: Callable[..., Any],
) -> None:
    model = load(smollm_path)
    slow = model.kernels["linear Q4_1"].startswith("reference")
    assert kernels == "preferred" or slow
    running = harness(model, num_pages=128)
    rows = running.run(prompt_ids, 5)
    written = [[int(found[-1].argmax())] for found in rows]
    for _ in range((NEW_TOKENS_SLOW if slow else NEW_TOKENS) - 1):
        logits = running.step({i: tokens[-1:] for i, tokens in enumerate(written)})
        for i, found in logits.items():
            written[i].append(int(found[-1].argmax()))
    for ids, tokens, found in zip(prompt_ids, written, rows, strict=True):
        with torch.no_grad():
            wanted = truth(torch.tensor([ids + tokens])).logits[0]
        torch.testing.assert_close(found, wanted[: len(ids)], atol=5e-4, rtol=1e-4)
        # each token is the truth's choice after the tokens before it, so the whole run is what it would have written
        assert tokens == wanted[len(ids) - 1 : -1].argmax(dim=-1).tolist()


MEMORY_SCRIPT = """
import sys, torch
from engine.batch import ForwardBatch, GroupMeta
from engine.models import load_model
from engine.spec import read_spec
torch.ones(4, 4) @ torch.ones(4, 4)
peak_kib = lambda: next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
before = peak_kib()
spec = read_spec(sys.argv[1])
seen = []
model = load_model(spec, "cpu", torch.float32, lambda done, total: seen.append((done, total)))
loaded = peak_kib()
attention = spec.layers[0].attention
views = [torch.zeros(2, 2, attention.num_kv_heads, 16, attention.head_dim) for _ in spec.layers]
one = torch.tensor([0])
pages = GroupMeta(torch.tensor([[1]], dtype=torch.int32), one + 1, one)
starts, contexts = torch.tensor([0, 1], dtype=torch.int32), torch.tensor([1], dtype=torch.int32)
model.forward(ForwardBatch(one + 1, one, starts, contexts, one, [pages], views, [0] * len(views), 1, 1))
assert seen == sorted(seen) and seen[-1][0] == seen[-1][1] == spec.weight_bytes, seen[-1]
print((loaded - before) << 10, (peak_kib() - before) << 10)
"""


def test_loading_and_running_smollm_stays_within_file_and_tiles(smollm_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MEMORY_SCRIPT, str(smollm_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    load_bytes, run_bytes = map(int, done.stdout.split())
    size = smollm_path.stat().st_size
    assert load_bytes < size + 32 * MEBIBYTE
    assert run_bytes < size + 96 * MEBIBYTE  # a whole float32 copy would be 538 MB
