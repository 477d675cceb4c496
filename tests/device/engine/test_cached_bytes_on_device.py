"""A cache of one byte a number on an accelerator: what whole models write with it, by transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.builder import BuiltEngine, build_engine
from engine.kernels.scaled_cache import parts
from engine.messages import Knobs, SamplingParams, Submit, WorkerConfig
from engine.models import load_model
from engine.quantize.kv_form import best_scales, stored_kv_scales
from engine.quantize.text_pass import batch_of
from engine.spec import read_spec
from tests.fakes.family_models import prompts, saved_model, true_logits

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
]
TOKENS = 24
NEAR = {"fp8": 0.35, "int8": 0.1}  # of the logits' spread, which a token written may be from the best one
SHARE = 0.95


def built(folder: Path, kv_dtype: str, dtype: str) -> BuiltEngine:
    config = WorkerConfig(
        "w",
        "tiny",
        str(folder),
        "",
        device="cuda:0",
        dtype=dtype,
        kv_dtype=kv_dtype,
        kv_bytes=1 << 24,
        max_context_tokens=256,
        knobs=Knobs(max_running=8, token_budget=64, prefill_chunk=32, prefix_cache=False),
    )
    engine = build_engine(config, lambda stage, done, total: None)
    assert engine.kernels["paged_attention"].startswith("triton"), engine.kernels
    assert engine.kernels["kv_write"].startswith("triton"), engine.kernels
    return engine


def written_by(engine: BuiltEngine, asked: dict[str, list[int]]) -> dict[str, list[int]]:
    written: dict[str, list[int]] = {name: [] for name in asked}
    for name, prompt in asked.items():
        engine.core.add(Submit(name, prompt, SamplingParams(max_tokens=TOKENS, temperature=0.0, ignore_eos=True)))
    while engine.core.has_work():
        for delta in engine.core.step().deltas:
            written[delta.request_id] += delta.token_ids
    return written


def share_near_the_best(truth: Any, written: dict[str, list[int]], limit: float) -> float:
    near = []
    for prompt, tokens in zip(prompts(), written.values(), strict=True):
        logits = true_logits(truth, prompt + tokens)[len(prompt) - 1 : -1]
        chosen = logits.gather(1, torch.tensor(tokens).unsqueeze(1)).squeeze(1)
        near.append((logits.amax(dim=1) - chosen) / logits.std(dim=1) < limit)
    return float(torch.cat(near).float().mean())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kv_dtype", list(NEAR))
@pytest.mark.parametrize("case", ["llama-head-dim", "gemma2", "gpt_oss"])
def test_greedy_tokens_with_a_cache_of_bytes_are_nearly_the_best(
    case: str, kv_dtype: str, dtype: str, tmp_path: Path
) -> None:
    truth = saved_model(case, tmp_path)
    asked = {str(i): prompt for i, prompt in enumerate(prompts())}
    limit = max(NEAR[kv_dtype], 0.35 if dtype == "bfloat16" else 0.0)
    assert share_near_the_best(truth, written_by(built(tmp_path, kv_dtype, dtype), asked), limit) >= SHARE


@pytest.mark.parametrize(("kv_dtype", "dtype"), [("fp8", "bfloat16"), ("fp8", "float32"), ("int8", "float32")])
def test_a_calibrated_cache_holds_the_constants_and_each_request_writes_what_it_writes_alone(
    kv_dtype: str, dtype: str, tmp_path: Path
) -> None:
    truth = saved_model("llama-head-dim", tmp_path)
    spec = read_spec(tmp_path)
    batch = batch_of(spec, prompts(), torch.device("cpu"), torch.float32)
    load_model(spec, "cpu", torch.float32, lambda done, total: None).forward(batch)
    stored = load_file(tmp_path / "model.safetensors")
    constants = [best_scales(view, "fp8") for view in batch.kv_views]  # as which they are taken without a scheme
    for layer, scales in enumerate(constants):
        stored |= stored_kv_scales(f"model.layers.{layer}.self_attn", scales)
    save_file(stored, tmp_path / "model.safetensors", metadata={"format": "pt"})
    engine = built(tmp_path, kv_dtype, dtype)
    assert engine.kernels["KV multipliers"].startswith("calibrated"), engine.kernels
    asked = {str(i): prompt for i, prompt in enumerate(prompts())}
    written = written_by(engine, asked)
    factor = 1.0 if kv_dtype == "fp8" else 448 / 127
    for layer, view in enumerate(engine.core.runner._kv_views):
        found = parts(view)[1]
        for plane, constant in enumerate(constants[layer] * factor):
            assert (found[:, plane] != 0).sum() >= sum(map(len, prompts()))
            assert found[:, plane][found[:, plane] != 0].eq(constant.to(found.device)).all()
    limit = max(NEAR[kv_dtype], 0.35 if dtype == "bfloat16" else 0.0)
    assert share_near_the_best(truth, written, limit) >= SHARE
    for name, prompt in asked.items():
        assert written_by(engine, {f"{name} alone": prompt}) == {f"{name} alone": written[name]}
