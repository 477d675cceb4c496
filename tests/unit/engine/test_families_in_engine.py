"""Every family through the whole engine: scheduler, page groups of its kinds of layers, prefix cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine.builder import build_engine
from engine.core import EngineCore
from engine.messages import Knobs, SamplingParams, Submit, WorkerConfig
from engine.spec.families import FAMILIES
from tests.fakes.family_models import CASES, prompts, saved_model, true_logits

TOKENS = 32


def engine(path: Path) -> EngineCore:
    knobs = Knobs(max_running=8, token_budget=32, prefill_chunk=16)
    config = WorkerConfig(
        "w",
        "tiny",
        str(path),
        "",
        kv_dtype="float32",  # as what it is compared with
        kv_bytes=1 << 23,
        max_context_tokens=256,
        threads=1,
        knobs=knobs,
    )
    return build_engine(config, lambda stage, done, total: None).core


def run(core: EngineCore, tag: str) -> list[list[int]]:
    """Greedy tokens of each prompt, all submitted at once."""
    greedy = SamplingParams(max_tokens=TOKENS, temperature=0.0, ignore_eos=True)
    out: dict[str, list[int]] = {f"{tag}{i}": [] for i in range(len(prompts()))}
    for i, prompt in enumerate(prompts()):
        core.add(Submit(f"{tag}{i}", prompt, greedy))
    while core.has_work():
        for delta in core.step().deltas:
            out[delta.request_id] += delta.token_ids
    assert core.kv.num_active == 0
    return list(out.values())


def wanted(truth: Any, prompt: list[int], written: list[int]) -> list[int]:
    """The truth's choice after each token: equal all through if and only if it would have written the same."""
    return true_logits(truth, prompt + written)[len(prompt) - 1 : -1].argmax(dim=-1).tolist()


@pytest.mark.parametrize("name", [family.key for family in FAMILIES])
def test_greedy_tokens_of_a_crowd_cold_and_cached_match_transformers(name: str, tmp_path: Path) -> None:
    case = next(case for case in CASES if case.split("-")[0] == name)
    truth = saved_model(case, tmp_path)
    before = torch.get_num_threads()
    try:
        core = engine(tmp_path)
        cold = run(core, "cold")
        for prompt, written in zip(prompts(), cold, strict=True):
            assert len(written) == TOKENS
            assert written == wanted(truth, prompt, written)
        assert run(core, "warm") == cold
        assert core.stats().cached_tokens_total > 0
    finally:
        torch.set_num_threads(before)
