"""Every family beside transformers, on small random weights: the same logits however the prompt is cut up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.models import Model
from engine.models.loading import BUILDERS
from engine.spec import read_spec
from engine.spec.families import FAMILIES
from tests.fakes.family_models import CASES, VOCABULARY, long_rope, prompts, saved_case, saved_model, true_logits


@pytest.mark.parametrize("name", CASES)
def test_logits_of_ragged_chunked_batch_match_transformers(
    name: str, kernels: str, tmp_path: Path, load: Callable[..., Model], harness: Callable[..., Any]
) -> None:
    truth = saved_model(name, tmp_path)
    model = load(tmp_path)
    assert kernels == "preferred" or all(chosen.startswith("reference") for chosen in model.kernels.values())
    expected = [true_logits(truth, p) for p in prompts()]
    for chunk in (1, 7, 512):
        for found, wanted in zip(harness(model).run(prompts(), chunk), expected, strict=True):
            torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)


def test_long_rope_beyond_the_original_context_matches_transformers(
    tmp_path: Path, load: Callable[..., Model], harness: Callable[..., Any]
) -> None:
    changes = {"original_max_position_embeddings": 12, "rope_parameters": long_rope(12)}
    truth = saved_case("Phi3", changes, tmp_path)
    long = [p for p in prompts() if len(p) > 12]
    for found, prompt in zip(harness(load(tmp_path)).run(long, 7), long, strict=True):
        torch.testing.assert_close(found, true_logits(truth, prompt), atol=1e-4, rtol=1e-4)
    short = harness(load(tmp_path, max_context_tokens=12)).run([long[0][:12]], 7)[0]
    torch.testing.assert_close(short, true_logits(truth, long[0][:12]), atol=1e-4, rtol=1e-4)


def test_greedy_tokens_of_ragged_batch_match_transformers(
    tmp_path: Path, load: Callable[..., Model], harness: Callable[..., Any]
) -> None:
    truth = saved_model("llama-rope-llama3", tmp_path)
    running = harness(load(tmp_path))
    last = {i: int(rows[-1].argmax()) for i, rows in enumerate(running.run(prompts(), 16))}
    written = {i: [token] for i, token in last.items()}
    for _ in range(31):
        logits = running.step({i: [tokens[-1]] for i, tokens in written.items()})
        for i, rows in logits.items():
            written[i].append(int(rows[-1].argmax()))
    for i, prompt in enumerate(prompts()):
        wanted = true_logits(truth, prompt + written[i])[len(prompt) - 1 : -1].argmax(dim=-1)
        assert written[i] == wanted.tolist()


def test_logits_in_bfloat16_stay_near_float32(
    tmp_path: Path, load: Callable[..., Model], harness: Callable[..., Any]
) -> None:
    truth = saved_model("llama", tmp_path)
    model = load(tmp_path, torch.bfloat16)
    for found, prompt in zip(harness(model).run(prompts(), 16), prompts(), strict=True):
        wanted = true_logits(truth, prompt)
        assert found.dtype == torch.float32
        assert (found - wanted).norm() / wanted.norm() < 0.05


@pytest.mark.parametrize("name", ["deepseek_v3", "glm4_moe", "mixtral"])
def test_router_logits_in_bfloat16_are_as_wide_as_the_family_has_them(
    name: str, tmp_path: Path, load: Callable[..., Model]
) -> None:
    truth = saved_model(name, tmp_path)
    router = load(tmp_path, torch.bfloat16).layers[1].mlp.router  # type: ignore[attr-defined]
    weight = truth.model.layers[1].mlp.gate.weight
    x = torch.randn(5, weight.shape[1], generator=torch.Generator().manual_seed(2)).to(torch.bfloat16)
    found = router(x)
    if name == "mixtral":
        assert found.dtype == torch.bfloat16
    else:
        assert torch.equal(found, x.float() @ weight.float().T)


def test_forward_without_wanted_rows_writes_pages_and_gives_no_logits(
    tmp_path: Path, load: Callable[..., Model], harness: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    saved_model("llama", tmp_path)
    model = load(tmp_path)
    running = harness(model)
    whole_forward = model.forward

    def forward_without_rows(batch: Any) -> torch.Tensor:
        batch.logit_rows = batch.logit_rows[:0]
        found = whole_forward(batch)
        assert found.shape == (0, VOCABULARY)
        return found

    prompt = prompts()[1]
    monkeypatch.setattr(model, "forward", forward_without_rows)
    running.step({0: prompt[:20]})
    monkeypatch.undo()
    continued = running.step({0: prompt[20:]})[0]
    torch.testing.assert_close(continued, harness(model).run([prompt], 64)[0][20:], atol=1e-4, rtol=1e-4)


def test_builders_and_families_name_the_same_keys() -> None:
    assert set(BUILDERS) == {family.key for family in FAMILIES}
    covered = {read_key(name) for name in CASES}
    assert covered == set(BUILDERS), "each family is compared with transformers"


def read_key(case: str) -> str:
    return case.split("-")[0]


def test_sharded_folder_gives_the_same_logits(
    tmp_path: Path, load: Callable[..., Model], harness: Callable[..., Any]
) -> None:
    truth = saved_model("qwen2", tmp_path / "whole")
    truth.save_pretrained(tmp_path / "shards", max_shard_size="40KB")
    assert len(read_spec(tmp_path / "shards").files) > 2
    whole, shards = load(tmp_path / "whole"), load(tmp_path / "shards")
    for a, b in zip(harness(whole).run(prompts(), 16), harness(shards).run(prompts(), 16), strict=True):
        assert torch.equal(a, b)
