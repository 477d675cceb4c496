"""Replayed steps write what eager ones write: at every captured size and one less, and around block borders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine.builder import BuiltEngine, build_engine
from engine.messages import Knobs, SamplingParams, Submit, WorkerConfig
from engine.runner.graphs import BUCKETS
from engine.runner.step_graphs import StepSize
from tests.fakes.family_models import saved_model

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
]
MOST = 512
TOKENS = 6
SIZES = sorted({size for bucket in BUCKETS if bucket <= MOST for size in (bucket - 1, bucket) if size})
BORDERS = (1, 2, 15, 16, 17, 31, 32, 33, 47, 48, 49)


def engine(folder: Path, graphs: bool, kv_dtype: str) -> BuiltEngine:
    knobs = Knobs(max_running=MOST, token_budget=4096, prefill_chunk=512, prefix_cache=False)
    config = WorkerConfig(
        "w", "tiny", str(folder), "", device="cuda:0", dtype="float32", kv_bytes=1 << 28, max_context_tokens=512,
        knobs=knobs, kv_dtype=kv_dtype,
    )  # fmt: skip
    built = build_engine(config, lambda stage, done, total: None)
    if not graphs:
        built.core.runner.graphs = built.core.runner.step_graphs = None
    while graphs and built.core.prepare():
        pass
    return built


def written(built: BuiltEngine, prompts: list[list[int]], name: str) -> list[list[int]]:
    core = built.core
    tokens: dict[str, list[int]] = {f"{name}-{i}": [] for i in range(len(prompts))}
    greedy = SamplingParams(max_tokens=TOKENS, temperature=0.0, ignore_eos=True)
    for request_id, prompt in zip(tokens, prompts, strict=True):
        core.add(Submit(request_id, prompt, greedy))
    while core.has_work():
        for delta in core.step().deltas:
            tokens[delta.request_id] += delta.token_ids
    return list(tokens.values())


@pytest.mark.parametrize(
    ("case", "kv_dtype"),
    [
        ("llama", "auto"),
        ("llama", "int8"),
        ("gemma3_text", "auto"),
        ("gemma3_text", "fp8"),
        ("qwen3_moe", "auto"),
        ("gpt_oss", "auto"),
        ("deepseek_v2", "auto"),
    ],
)
def test_replayed_steps_write_what_eager_ones_write(case: str, kv_dtype: str, tmp_path: Path) -> None:
    saved_model(case, tmp_path)
    replaying, eager = engine(tmp_path, True, kv_dtype), engine(tmp_path, False, kv_dtype)
    assert replaying.core.runner.graphs is not None
    vocab = replaying.core.scheduler.vocab_size
    generator = torch.Generator().manual_seed(0)
    graphs, small = replaying.core.runner.step_graphs, []
    assert graphs is not None
    replay = graphs.replay

    def counted(size: StepSize, *arguments: Any) -> torch.Tensor:
        small.append(size)
        return replay(size, *arguments)

    graphs.replay = counted  # type: ignore[method-assign]
    different = 0
    for size in SIZES:
        lengths = [BORDERS[i % len(BORDERS)] for i in range(size)]
        prompts = [torch.randint(3, vocab, (length,), generator=generator).tolist() for length in lengths]
        got = written(replaying, prompts, f"g{size}")
        truth = written(eager, prompts, f"e{size}")
        assert all(len(tokens) == TOKENS for tokens in got)
        different += sum(a != b for a, b in zip(got, truth, strict=True))
    assert len(set(small)) >= 4, "prompts' steps were replayed"
    # Libraries take another product for another number of rows, padding included, and a graph has more parts of a
    # context, as for the longest: two logits may be that close. A cache of bytes then holds the next code of a number.
    most = sum(SIZES) // (100 if kv_dtype == "auto" else 20)
    assert different <= most, f"{different} of {sum(SIZES)} answers differ"
