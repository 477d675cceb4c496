"""The small real model through the whole engine: equal to transformers, and to itself however it is run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.builder import build_engine
from engine.core import EngineCore
from engine.messages import FinishReason, Knobs, SamplingParams, Submit, WorkerConfig
from engine.spec import read_spec
from engine.text import load_text

QUESTIONS = [
    "What is the capital of France?",
    "Write one sentence about the sea.",
    "List three prime numbers and say why they are prime.",
    "def fibonacci(n):",
    "Translate 'good morning' into Spanish, German and Italian.",
]
TOKENS = 64


@pytest.fixture(scope="module")
def prompts(smollm_path: Path) -> list[list[int]]:
    text = load_text(read_spec(smollm_path))
    return [text.render_chat([{"role": "user", "content": question}]) for question in QUESTIONS]


def engine(path: Path, *, kv_tokens: int = 16_384, swap_bytes: int = 0, **knobs: object) -> EngineCore:
    settings = {"max_running": 16, "token_budget": 512, "prefill_chunk": 256, **knobs}
    config = WorkerConfig(
        "w",
        "smollm",
        str(path),
        "",
        kv_tokens=kv_tokens,
        max_context_tokens=2048,
        threads=2,
        knobs=Knobs(**settings),
        swap_bytes=swap_bytes,
    )
    return build_engine(config, lambda stage, done, total: None).core


def run(core: EngineCore, prompts: list[list[int]], tag: str = "r", count: int = TOKENS) -> list[list[int]]:
    """Greedy tokens of each prompt, all submitted at once."""
    greedy = SamplingParams(max_tokens=count, temperature=0.0, ignore_eos=True)
    out: dict[str, list[int]] = {f"{tag}{i}": [] for i in range(len(prompts))}
    ends: list[FinishReason] = []
    for i, prompt in enumerate(prompts):
        core.add(Submit(f"{tag}{i}", prompt, greedy))
    while core.has_work():
        for delta in core.step().deltas:
            out[delta.request_id] += delta.token_ids
            ends += [delta.finish] if delta.finish else []
    assert ends == [FinishReason.LENGTH] * len(prompts)
    assert core.kv.num_active == 0
    return list(out.values())


@pytest.fixture(scope="module")
def alone(smollm_path: Path, prompts: list[list[int]]) -> list[list[int]]:
    core = engine(smollm_path, prefix_cache=False)
    return [run(core, [prompt])[0] for prompt in prompts]


@pytest.mark.slow
def test_greedy_tokens_equal_those_of_transformers_on_the_same_file(smollm_path, prompts, alone):
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        str(smollm_path.parent), gguf_file=smollm_path.name, dtype=torch.float32
    )
    for prompt, ours in zip(prompts, alone, strict=True):
        assert ours == _greedy_of(model, prompt)


def _greedy_of(model, prompt: list[int]) -> list[int]:
    """The largest logit each time, past the end of sequence too (generate's min_new_tokens would mask it instead)."""
    tokens, cache, feed = [], None, torch.tensor([prompt])
    with torch.inference_mode():
        while len(tokens) < TOKENS:
            out = model(feed, cache=cache, use_cache=True)
            cache, feed = out.cache, out.logits[:, -1:].argmax(-1)
            tokens.append(int(feed))
    return tokens


def test_tokens_among_fifteen_others_equal_those_alone(smollm_path, prompts, alone):
    crowd = [prompts[i % 5][: 12 + i] for i in range(11)]
    together = run(engine(smollm_path), prompts + crowd)
    assert together[:5] == alone


def test_tokens_with_a_warm_prefix_cache_equal_those_of_a_cold_one(smollm_path, prompts, alone):
    core = engine(smollm_path)
    assert run(core, prompts, "cold") == alone
    assert run(core, prompts, "warm") == alone
    assert core.stats().cached_tokens_total > 0


@pytest.mark.parametrize("chunk", [1, 7, 512])
def test_tokens_in_any_chunks_equal_those_alone(smollm_path, prompts, alone, chunk):
    core = engine(smollm_path, prefill_chunk=chunk, token_budget=512, prefix_cache=False)
    assert run(core, prompts) == alone


def test_tokens_across_preemption_equal_those_alone(smollm_path, prompts, alone):
    core = engine(smollm_path, kv_tokens=336)
    assert run(core, prompts) == alone
    assert core.scheduler.preemptions_total > 0, "the pool was meant to be too small for all of them"


def test_tokens_across_host_memory_equal_those_alone(smollm_path, prompts, alone):
    core = engine(smollm_path, kv_tokens=336, swap_bytes=64 << 20)
    assert run(core, prompts) == alone
    stats = core.stats()
    assert stats.swap_ins_total == stats.swap_outs_total > 0, "copying was meant to be the cheaper, as it is"


def test_two_hundred_requests_at_once_all_end_once(smollm_path, prompts, alone):
    core = engine(smollm_path, max_running=64, token_budget=1024)
    many = run(core, [prompts[i % 5] for i in range(200)], count=8)
    assert many == [alone[i % 5][:8] for i in range(200)]
