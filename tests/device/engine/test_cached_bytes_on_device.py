"""A cache of one byte a number on an accelerator: what whole models write with it, by transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.builder import build_engine
from engine.messages import Knobs, SamplingParams, Submit, WorkerConfig
from tests.fakes.family_models import prompts, saved_model, true_logits

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
]
TOKENS = 24
NEAR = {"fp8": 0.35, "int8": 0.1}  # of the logits' spread, which a token written may be from the best one
SHARE = 0.95


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kv_dtype", list(NEAR))
@pytest.mark.parametrize("case", ["llama-head-dim", "gemma2", "gpt_oss"])
def test_greedy_tokens_with_a_cache_of_bytes_are_nearly_the_best(
    case: str, kv_dtype: str, dtype: str, tmp_path: Path
) -> None:
    truth = saved_model(case, tmp_path)
    config = WorkerConfig(
        "w",
        "tiny",
        str(tmp_path),
        "",
        device="cuda:0",
        dtype=dtype,
        kv_dtype=kv_dtype,
        kv_bytes=1 << 24,
        max_context_tokens=256,
        knobs=Knobs(max_running=8, token_budget=64, prefill_chunk=32),
    )
    built = build_engine(config, lambda stage, done, total: None)
    assert built.kernels["paged_attention"].startswith("triton"), built.kernels
    core = built.core
    written: dict[str, list[int]] = {str(i): [] for i in range(len(prompts()))}
    for i, prompt in enumerate(prompts()):
        core.add(Submit(str(i), prompt, SamplingParams(max_tokens=TOKENS, temperature=0.0, ignore_eos=True)))
    while core.has_work():
        for delta in core.step().deltas:
            written[delta.request_id] += delta.token_ids
    limit = max(NEAR[kv_dtype], 0.35 if dtype == "bfloat16" else 0.0)
    near = []
    for prompt, tokens in zip(prompts(), written.values(), strict=True):
        logits = true_logits(truth, prompt + tokens)[len(prompt) - 1 : -1]
        chosen = logits.gather(1, torch.tensor(tokens).unsqueeze(1)).squeeze(1)
        near.append((logits.amax(dim=1) - chosen) / logits.std(dim=1) < limit)
    assert torch.cat(near).float().mean() >= SHARE, near
