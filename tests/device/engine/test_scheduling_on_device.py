"""On an accelerator: decodes take no memory, and pages that went to host memory come back as they were."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bench.steadiness import longest_gap, steady_allocations
from engine.builder import BuiltEngine, build_engine
from engine.core import EngineCore
from engine.kv.manager import PageMove
from engine.messages import Knobs, SamplingParams, Submit, WorkerConfig
from tests.fakes.family_models import CASES, saved_model

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
]
PAGE = 16


def built_on_gpu(folder: Path, **more: object) -> BuiltEngine:
    saved_model(next(case for case in CASES if case.split("-")[0] == "llama"), folder)
    knobs = Knobs(max_running=8, token_budget=128, prefill_chunk=64, prefix_cache=False)
    options = {"kv_tokens": 4096, "dtype": "float32", **more}
    config = WorkerConfig("w", "tiny", str(folder), "", device="cuda:0", max_context_tokens=256, knobs=knobs, **options)  # type: ignore[arg-type]
    built = build_engine(config, lambda stage, done, total: None)
    while built.core.prepare():
        pass
    return built


def prompt(length: int, seed: int) -> list[int]:
    return [(seed * 7919 + i * 31) % 90 for i in range(length)]


def written(core: EngineCore, submits: list[Submit]) -> dict[str, list[int]]:
    tokens: dict[str, list[int]] = {submit.request_id: [] for submit in submits}
    for submit in submits:
        core.add(submit)
    while core.has_work():
        for delta in core.step().deltas:
            assert delta.error is None
            tokens[delta.request_id] += delta.token_ids
    return tokens


@pytest.mark.parametrize("batch", [1, 5, 8])
def test_fifty_decode_steps_take_no_device_memory(batch: int, tmp_path: Path) -> None:
    built = built_on_gpu(tmp_path)
    assert isinstance(built.core, EngineCore)
    counts = steady_allocations(built.core, built.device, [prompt(20 + i, i) for i in range(batch)])
    assert counts is not None
    assert counts["segments"] == counts["retries"] == counts["reserved_bytes"] == 0, counts


def test_pages_come_back_from_host_memory_as_they_were(tmp_path: Path) -> None:
    built = built_on_gpu(tmp_path, swap_bytes=1 << 24)
    core = built.core
    assert isinstance(core, EngineCore)
    host = core.scheduler.places.host
    assert host is not None
    assert host.bytes_per_s > 1e8
    buffer = host._buffer
    buffer.copy_(torch.randn(len(buffer), device=buffer.device).to(buffer.dtype))
    size = core.layout.groups[0].small_page_elements
    before = buffer[: 40 * size].clone()
    saved = host.save(20 * PAGE, [{block: block + 1 for block in range(20)}])
    buffer[: 40 * size] = 0  # queued behind the copies
    host.load(saved, [PageMove(0, block, block + 1) for block in range(20)])
    assert torch.equal(buffer[size : 21 * size], before[size : 21 * size])


def test_swapped_requests_write_what_they_write_alone(tmp_path: Path) -> None:
    greedy = SamplingParams(max_tokens=60, temperature=0.0, ignore_eos=True)
    submits = [Submit(f"r{i}", prompt(30 + 9 * i, i), greedy) for i in range(8)]
    roomy = built_on_gpu(tmp_path).core
    assert isinstance(roomy, EngineCore)
    alone = {submit.request_id: written(roomy, [submit])[submit.request_id] for submit in submits}
    tight = built_on_gpu(tmp_path, kv_tokens=512, swap_bytes=1 << 24).core
    assert isinstance(tight, EngineCore)
    assert tight.scheduler.places.host is not None
    tight.scheduler.places.host.bytes_per_s = float("inf")
    seen = written(tight, submits)
    assert tight.stats().swap_ins_total > 0
    equal = sum(a == b for name in alone for a, b in zip(alone[name], seen[name], strict=True))
    assert equal >= 0.95 * 60 * len(submits), "two nearly equal logits may change places with the batch"


def test_streams_go_on_while_a_prompt_enters(tmp_path: Path) -> None:
    core = built_on_gpu(tmp_path).core
    assert isinstance(core, EngineCore)
    gap = longest_gap(core, [prompt(20, i) for i in range(4)], prompt(200, 9), 40.0)
    assert gap.steps >= 2
    assert gap.longest_ms < 500.0
