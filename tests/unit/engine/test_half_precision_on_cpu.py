"""Half precision asked for on a CPU: a token depends neither on chunks nor on what shares its step."""

from __future__ import annotations

import random

import pytest
import torch

from engine.builder import BuiltEngine, build_engine
from engine.kernels.cpu.library import absent_reason
from engine.messages import FinishReason, Knobs, SamplingParams, Submit, WorkerConfig
from tests.fakes.family_models import CASES, VOCABULARY, saved_case


def built(folder, dtype: str, **knobs: int) -> BuiltEngine:
    config = WorkerConfig(
        "w", "m", str(folder), "", kv_tokens=4096, max_context_tokens=256, threads=1, dtype=dtype, knobs=Knobs(**knobs)
    )
    return build_engine(config, lambda stage, done, total: None)


def written(engine: BuiltEngine, requests: list[Submit]) -> dict[str, list[int]]:
    out: dict[str, list[int]] = {request.request_id: [] for request in requests}
    for request in requests:
        engine.core.add(request)
    while engine.core.has_work():
        for delta in engine.core.step().deltas:
            assert delta.finish is not FinishReason.ERROR
            out[delta.request_id] += delta.token_ids
    return out


@pytest.mark.skipif(absent_reason() is not None, reason="needs the CPU library")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_greedy_tokens_depend_neither_on_chunks_nor_on_a_crowd(dtype, tmp_path):
    family, changes = CASES["llama-head-dim"]
    saved_case(family, changes, tmp_path)
    draw = random.Random(7)
    greedy = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)
    requests = [
        Submit(f"r{i}", [draw.randrange(VOCABULARY) for _ in range(draw.choice((1, 5, 17, 40)))], greedy)
        for i in range(24)
    ]
    alone = built(tmp_path, dtype, max_running=1, token_budget=512, prefill_chunk=512)
    wanted = written(alone, requests)
    told = [note for note in alone.notes if dtype in note]
    assert len(told) == 1
    assert "float32" in told[0]
    assert alone.core.pool.dtype is getattr(torch, dtype), "the cache is of what was asked for"
    crowd = built(tmp_path, dtype, max_running=24, token_budget=64, prefill_chunk=1)
    assert written(crowd, requests) == wanted
