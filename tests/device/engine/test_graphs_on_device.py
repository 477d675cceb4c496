"""Replayed steps write what eager ones write: at every captured size and one less, and around block borders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.builder import BuiltEngine, build_engine
from engine.core import EngineCore
from engine.devices import open_device
from engine.kv.manager import NULL_PAGE
from engine.messages import Knobs, SamplingParams, Submit, WorkerConfig
from engine.runner.graphs import BUCKETS
from engine.runner.step_graphs import StepSize
from engine.scheduler.chunk import ScheduledChunk
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


def test_rows_that_pad_a_replayed_step_write_to_the_null_page_alone(tmp_path: Path) -> None:
    saved_model("gemma3_text", tmp_path)
    core = engine(tmp_path, True, "auto").core
    assert isinstance(core, EngineCore)
    core.pool.copy_(torch.randn(core.pool.shape, device=core.pool.device))
    greedy = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True)
    for i in range(5):  # of a graph of eight rows
        core.add(Submit(f"r{i}", [7 + i] * (14 + i), greedy))
    seen: list[list[ScheduledChunk]] = []
    core.on_step = seen.append
    for _ in range(12):
        core.step()
    core._complete_inflight()
    core.device.synchronize()
    before = core.pool.clone()
    seen.clear()
    core.step()
    core.device.synchronize()
    (chunks,) = seen
    assert [chunk.num_tokens for chunk in chunks] == [1] * 5
    allowed = torch.zeros_like(core.pool)
    size = core.layout.page_tokens
    pages = core.pool.numel() // core.layout.large_page_elements
    views = core.layout.views(allowed, pages)
    for view, group in zip(views, core.layout.layer_groups, strict=True):
        newest = [chunk.request.pages.tables[group][chunk.start // size] for chunk in chunks]
        assert NULL_PAGE not in newest
        view[[NULL_PAGE, *newest]] = 1
    changed = core.pool != before
    assert changed.any()
    assert not (changed & (allowed == 0)).any()


def test_inputs_and_tokens_go_through_pinned_memory() -> None:
    device = open_device("cuda:0")
    assert device.pinned_ints(5).is_pinned()
    there = torch.arange(1000, device="cuda")
    host, wait = device.copy_to_host(there)
    assert host.is_pinned()
    wait()
    assert host.tolist() == list(range(1000))


def test_an_idle_engine_whose_experts_plain_torch_computes_captures_what_it_can(tmp_path: Path) -> None:
    """Such experts ask the device in a large step, which would end a capture, and with it the worker."""
    saved_model("qwen3_moe", tmp_path)
    stored = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(stored | {"max_position_embeddings": 4096}))
    knobs = Knobs(max_running=16, token_budget=4096, prefill_chunk=2048, prefix_cache=False)
    config = WorkerConfig(
        "w", "tiny", str(tmp_path), "", device="cuda:0", dtype="bfloat16", kv_bytes=1 << 28, max_context_tokens=4096,
        knobs=knobs, weights="int8-mixed",
    )  # fmt: skip
    built = build_engine(config, lambda stage, done, total: None)
    assert any(op.startswith("experts") and why.startswith("reference") for op, why in built.kernels.items())
    while built.core.prepare():
        pass
    assert [len(tokens) for tokens in written(built, [[5] * 700, [6] * 40], "r")] == [TOKENS, TOKENS]
