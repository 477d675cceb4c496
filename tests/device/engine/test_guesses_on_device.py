"""Guesses on an accelerator: checked in replayed steps, and the text is what it is without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine.builder import build_engine
from engine.core import EngineCore
from engine.messages import Knobs, SamplingParams, Submit, WorkerConfig
from tests.fakes.family_models import saved_model

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
]
TOKENS = 60
PROMPTS = [[7, 9, 11, 13] * (2 + 3 * i) for i in range(5)]  # the same again and again: what follows is looked up


def written(folder: Path, guesses: int, kv_dtype: str) -> tuple[list[list[int]], EngineCore, int]:
    """And in how many steps that were replayed there was something to check."""
    knobs = Knobs(max_running=8, token_budget=256, prefill_chunk=64, prefix_cache=False, speculation_tokens=guesses)
    config = WorkerConfig(
        "w", "tiny", str(folder), "", device="cuda:0", dtype="float32", kv_dtype=kv_dtype, kv_bytes=1 << 25,
        max_context_tokens=256, knobs=knobs,
    )  # fmt: skip
    core = build_engine(config, lambda stage, done, total: None).core
    assert isinstance(core, EngineCore)
    core.scheduler.speculation.heeds_cost = False
    while core.prepare():
        pass
    graphs = core.runner.step_graphs
    assert graphs is not None
    checks = 0
    replay = graphs.replay

    def counted(size: Any, arrays: Any, pool: torch.Tensor) -> torch.Tensor:
        nonlocal checks
        checks += len(arrays.logit_rows) > len(arrays.slots)
        return replay(size, arrays, pool)

    graphs.replay = counted  # type: ignore[method-assign]
    tokens: dict[str, list[int]] = {f"r{i}": [] for i in range(len(PROMPTS))}
    for name, prompt in zip(tokens, PROMPTS, strict=True):
        core.add(Submit(name, prompt, SamplingParams(max_tokens=TOKENS, temperature=0.0, ignore_eos=True)))
    while core.has_work():
        for delta in core.step().deltas:
            assert delta.error is None, delta.error
            tokens[delta.request_id] += delta.token_ids
    return list(tokens.values()), core, checks


@pytest.mark.parametrize(("case", "kv_dtype"), [("llama", "auto"), ("gemma3_text", "auto"), ("llama", "fp8")])
def test_text_is_what_it_is_without_guesses(case: str, kv_dtype: str, tmp_path: Path) -> None:
    saved_model(case, tmp_path)
    plain, _, _ = written(tmp_path, 0, kv_dtype)
    guessed, core, checks = written(tmp_path, 4, kv_dtype)
    assert core.stats().draft_tokens_total > 20
    assert checks > 10
    assert all(len(tokens) == TOKENS for tokens in guessed)
    # Two nearly equal logits may change places with the number of rows; what follows then differs.
    same = [sum(a == b for a, b in zip(x, y, strict=True)) for x, y in zip(plain, guessed, strict=True)]
    assert sum(same) >= 0.9 * TOKENS * len(PROMPTS), same
