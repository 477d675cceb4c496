"""Layers for speculation: their guesses are those of the same sums in transformers, and change no text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.builder import build_engine
from engine.errors import UnsupportedFormat
from engine.messages import Knobs, SamplingParams, Submit, WorkerConfig
from engine.spec import read_spec
from engine.speculative.next_token import NextTokenDrafter
from engine.speculative.next_token_loading import next_token_tensors
from tests.fakes.engine_runs import preempt_often
from tests.fakes.family_models import saved_model

TOKENS = 12


def with_layer(case: str, folder: Path, *, shared_ends: bool = False) -> tuple[Any, int, dict[str, torch.Tensor]]:
    """A model saved with its last layer made one for speculation: the whole, the layer, what leads into it."""
    whole = saved_model(case, folder)
    config_path = folder / "config.json"
    config = json.loads(config_path.read_text())
    last = config["num_hidden_layers"] - 1
    config["num_hidden_layers"] = last
    if "layer_types" in config:
        config["layer_types"] = config["layer_types"][:last]
    config_path.write_text(json.dumps(config))
    path = folder / "model.safetensors"
    tensors = load_file(path)
    hidden = config["hidden_size"]
    generator = torch.Generator().manual_seed(5)
    joining = {
        "enorm": 1 + 0.3 * torch.randn(hidden, generator=generator),
        "hnorm": 1 + 0.3 * torch.randn(hidden, generator=generator),
        "eh_proj": torch.randn(hidden, 2 * hidden, generator=generator) * 0.3,
        "norm": 1 + 0.3 * torch.randn(hidden, generator=generator),
    }
    prefix = f"model.layers.{last}."
    added = {f"{prefix}{name}.weight": joining[name] for name in ("enorm", "hnorm", "eh_proj")}
    added[f"{prefix}shared_head.norm.weight"] = joining["norm"]
    if not shared_ends:
        added[f"{prefix}embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
        added[f"{prefix}shared_head.head.weight"] = tensors["lm_head.weight"].clone()
    save_file({**tensors, **added}, path, {"format": "pt"})
    return whole, last, joining


def true_guess(whole: Any, last: int, joining: dict[str, torch.Tensor], tokens: list[int]) -> int:
    """What the layer says comes after tokens and the model's own next token, all of it computed anew."""

    def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + whole.config.rms_norm_eps) * weight

    inner = whole.model
    layers = inner.layers
    ids = torch.tensor([tokens])
    with torch.no_grad():
        inner.layers = layers[:last]
        states = inner(ids[:, :-1]).last_hidden_state
        embedded = inner.embed_tokens(ids[:, 1:])
        joined = torch.cat((norm(embedded, joining["enorm"]), norm(states, joining["hnorm"])), -1)
        inner.layers, before = layers[last : last + 1], inner.norm.weight.data
        inner.norm.weight.data = joining["norm"]
        said = whole.lm_head(inner(inputs_embeds=joined @ joining["eh_proj"].T).last_hidden_state)
        inner.norm.weight.data, inner.layers = before, layers
    return int(said[0, -1].argmax())


def engine(folder: Path, *, own: bool, **knobs: int):
    config = WorkerConfig(
        "w", "tiny", str(folder), "", kv_tokens=1024, max_context_tokens=256, threads=1,
        knobs=Knobs(**{"max_running": 4, "token_budget": 32, "prefill_chunk": 8, "speculation_tokens": 1, **knobs}),
        draft_model_path=str(folder) if own else "",
    )  # fmt: skip
    core = build_engine(config, lambda stage, done, total: None).core
    core.scheduler.speculation.heeds_cost = False
    return core


def run(core, prompts) -> list[list[int]]:
    out: dict[str, list[int]] = {str(i): [] for i in range(len(prompts))}
    for i, prompt in enumerate(prompts):
        params = {"temperature": 0.0} if i % 2 == 0 else {"temperature": 1.0, "seed": i}
        core.add(Submit(str(i), prompt, SamplingParams(max_tokens=TOKENS, ignore_eos=True, **params)))
    while core.has_work():
        for delta in core.step().deltas:
            out[delta.request_id] += delta.token_ids
    assert core.kv.num_active == 0
    return list(out.values())


PROMPTS = [[3, 5, 8, 13, 21, 34], [7] * 19, [2 + n % 90 for n in range(40)], [9, 9]]
FAMILIES = ["deepseek_v3", "glm4_moe"]


@pytest.mark.parametrize("case", FAMILIES)
@pytest.mark.parametrize("shared_ends", [False, True])
def test_guesses_equal_those_of_the_same_sums_and_change_no_text(case, shared_ends, tmp_path):
    whole, last, joining = with_layer(case, tmp_path, shared_ends=shared_ends)
    expected = run(engine(tmp_path, own=False, speculation_tokens=0), PROMPTS)
    core = engine(tmp_path, own=True)
    drafter = core.scheduler.speculation.drafters[-1]
    assert isinstance(drafter, NextTokenDrafter)
    core.scheduler.speculation.drafters = [drafter]
    guessed = []
    propose = drafter.propose

    def watched(wishes):
        found = propose(wishes)
        for request, _ in wishes:
            guessed.append((list(request.token_ids), found.get(request.id)))
        return found

    drafter.propose = watched
    assert run(core, PROMPTS) == expected
    checked = [(tokens, draft) for tokens, draft in guessed if draft]
    assert len(checked) > 10
    for tokens, draft in checked:
        assert draft[0] == true_guess(whole, last, joining, tokens)
    drafter.check_integrity()
    assert drafter.kv.num_active == 0


def test_several_guesses_preemption_and_cached_prefixes_change_no_text(tmp_path):
    with_layer("deepseek_v3", tmp_path)
    expected = run(engine(tmp_path, own=False, speculation_tokens=0), PROMPTS)
    core = engine(tmp_path, own=True, speculation_tokens=4)
    core.scheduler.speculation.drafters = core.scheduler.speculation.drafters[-1:]
    assert run(core, PROMPTS) == expected
    assert run(core, PROMPTS) == expected, "with what the first time left in the cache"
    preempt_often(core)
    assert run(core, PROMPTS) == expected
    assert core.scheduler.preemptions_total > 3
    assert core.stats().cached_tokens_total > 0
    assert core.stats().draft_tokens_total > 20


def test_layer_under_its_own_name_is_found_too(tmp_path):
    with_layer("glm4_moe", tmp_path)
    spec = read_spec(str(tmp_path))
    found = next_token_tensors(spec)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    prefix = f"model.layers.{len(spec.layers)}."
    names = {
        "enorm": "pre_fc_norm_embedding",
        "hnorm": "pre_fc_norm_hidden",
        "eh_proj": "fc",
        "shared_head.norm": "norm",
    }
    renamed = {}
    for name, tensor in tensors.items():
        inner = name.removeprefix(prefix)
        if inner != name:
            stem = inner.removesuffix(".weight")
            if stem in ("embed_tokens", "shared_head.head"):
                continue
            name = f"mtp.{names[stem]}.weight" if stem in names else f"mtp.layers.0.{inner}"
        renamed[name] = tensor
    save_file(renamed, path, {"format": "pt"})
    again = next_token_tensors(spec)
    assert {i.name for i in again.spec.tensors} == {i.name for i in found.spec.tensors}
    assert again.joining.keys() == found.joining.keys()


def test_checkpoint_without_such_a_layer_is_refused(tmp_path):
    saved_model("llama", tmp_path)
    with pytest.raises(UnsupportedFormat, match="no layer that guesses"):
        engine(tmp_path, own=True)
