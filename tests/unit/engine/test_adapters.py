"""LoRA adapters: rows get their own adapter's addition in any mixture, equal to a base it was merged into."""

from __future__ import annotations

import copy

import gguf
import msgspec
import pytest
import torch

from engine.builder import build_engine
from engine.core import EngineCore
from engine.devices.cpu import CpuDevice
from engine.errors import UnsupportedFormat
from engine.kv.layout import solve_layout
from engine.messages import AdapterSource, FinishReason, Knobs, SamplingParams, Submit, WorkerConfig
from engine.models import load_model
from engine.models.adapters import AdapterBank
from engine.spec import read_spec
from engine.spec.adapter_spec import named, read_adapter
from engine.spec.adapter_targets import adapter_targets
from tests.fakes.adapters import ATTENTION, MLP, merge, write_adapter
from tests.fakes.engine_models import GraphDevice
from tests.fakes.family_models import prompts, saved_case, saved_model, true_logits
from tests.fakes.gguf_models import write_gguf

GREEDY = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True, top_logprobs=0)
# family -> targets that are trained there
FAMILIES = {
    "llama": ATTENTION + MLP,
    "llama-bias": ATTENTION,
    "qwen3": ("q_proj", "v_proj", "down_proj"),
    "gemma2": ATTENTION + MLP,
    "olmo2": ATTENTION + MLP,
    "phi3": ("qkv_proj", "o_proj", "gate_up_proj", "down_proj"),
    "glm4": ("q_proj", "k_proj", "gate_up_proj"),
    "mixtral": ATTENTION,
    "deepseek_v2": ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj"),
}


def built(folder, adapters=None, **knobs):
    settings = Knobs(**({"max_running": 16, "token_budget": 64, "prefill_chunk": 24} | knobs))
    sources = tuple(AdapterSource(name, str(path)) for name, path in (adapters or {}).items())
    config = WorkerConfig(
        "w", "m", str(folder), "", kv_tokens=4096, threads=1, dtype="float32", knobs=settings, adapters=sources
    )
    return build_engine(config, lambda stage, done, total: None)


def run(core):
    found, ends = {}, {}
    while core.has_work():
        for delta in core.step().deltas:
            tokens, logprobs = found.setdefault(delta.request_id, ([], []))
            tokens += delta.token_ids
            logprobs += [one.logprob for one in delta.logprobs or ()]
            if delta.finish is not None:
                ends[delta.request_id] = delta
    return found, ends


@pytest.mark.parametrize("name", FAMILIES)
def test_adapter_equals_the_base_it_was_merged_into(name, tmp_path):
    base = saved_model(name, tmp_path / "base")
    folder = write_adapter(tmp_path / "lora", base, targets=FAMILIES[name])
    merged = copy.deepcopy(base)
    merge(merged, folder)
    core = built(tmp_path / "base", {"lora": folder}).core
    for index, prompt in enumerate(prompts()):
        core.add(Submit(f"{index}", prompt, GREEDY, adapter="lora"))
    found, _ = run(core)
    for index, prompt in enumerate(prompts()):
        tokens, logprobs = found[f"{index}"]
        logits = torch.log_softmax(true_logits(merged, prompt + tokens)[len(prompt) - 1 : -1], dim=-1)
        plain = torch.log_softmax(true_logits(base, prompt + tokens)[len(prompt) - 1 : -1], dim=-1)
        assert tokens == logits.argmax(dim=-1).tolist()
        said = logits.gather(1, torch.tensor(tokens)[:, None]).squeeze(1)
        torch.testing.assert_close(torch.tensor(logprobs), said, atol=2e-4, rtol=0)
        assert not torch.allclose(logits, plain, atol=1e-2), "the adapter changes nothing here: the test shows nothing"


def test_adapters_and_the_base_in_one_batch_answer_as_each_does_alone(tmp_path):
    base = saved_model("llama", tmp_path / "base")
    adapters = {
        "a": write_adapter(tmp_path / "a", base, rank=3, seed=1),
        "b": write_adapter(tmp_path / "b", base, rank=8, alpha=5.0, seed=2, targets=("q_proj", "down_proj")),
        "c": write_adapter(
            tmp_path / "c", base, rank=2, seed=3, use_rslora=True, dtype=torch.bfloat16, only_layers=[1]
        ),
    }
    prompt = prompts()[3]
    alone = {}
    for name in ("", *adapters):
        core = built(tmp_path / "base", {name: adapters[name]} if name else None).core
        core.add(Submit("one", prompt, GREEDY, adapter=name))
        alone[name] = run(core)[0]["one"]
    assert len({tuple(tokens) for tokens, _ in alone.values()}) > 2
    core = built(tmp_path / "base", adapters, max_running=6).core
    for turn in range(3):
        for name in alone:
            core.add(Submit(f"{name}:{turn}", prompt, GREEDY, adapter=name, cache_salt="same"))
    found, _ = run(core)
    for key, (tokens, logprobs) in found.items():
        wanted, said = alone[key.split(":")[0]]
        assert tokens == wanted, key
        torch.testing.assert_close(torch.tensor(logprobs), torch.tensor(said), atol=1e-4, rtol=0)


def test_cached_prompts_are_shared_within_an_adapter_alone(tmp_path):
    base = saved_model("llama", tmp_path / "base")
    core = built(tmp_path / "base", {"a": write_adapter(tmp_path / "a", base)}).core
    cached = []
    for index, adapter in enumerate(("", "a", "a", "")):
        core.add(Submit(f"{index}", prompts()[3], GREEDY, adapter=adapter))
        cached.append(run(core)[1][f"{index}"].usage.cached_tokens)
    assert cached == [0, 0, 64, 64]


def test_adapter_that_is_not_loaded_is_refused(tmp_path):
    base = saved_model("llama", tmp_path / "base")
    engine = built(tmp_path / "base", {"a": write_adapter(tmp_path / "a", base)})
    assert engine.adapters == ("a",)
    engine.core.add(Submit("x", [1], GREEDY, adapter="b"))
    _, ends = run(engine.core)
    assert (ends["x"].finish, ends["x"].error.code) == (FinishReason.ERROR, "invalid_parameter")


def test_rank_and_alpha_patterns_hold_for_the_modules_they_name(tmp_path):
    base = saved_model("llama", tmp_path / "base")
    folder = write_adapter(
        tmp_path / "a", base, rank=4, alpha=8.0, alpha_pattern={"q_proj": 2.0, "model.layers.1.mlp.up_proj": 20}
    )
    scales = {pair.module: pair.scale for pair in read_adapter(folder).pairs}
    assert scales["model.layers.0.self_attn.q_proj"] == 0.5
    assert scales["model.layers.1.mlp.up_proj"] == 5.0
    assert scales["model.layers.0.mlp.up_proj"] == 2.0


@pytest.mark.parametrize(
    ("stated", "why"),
    [
        ({"use_dora": True}, "DoRA"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"bias": "all"}, "bias"),
        ({"peft_type": "IA3"}, "peft_type"),
        ({"fan_in_fan_out": True}, "transposed"),
        ({"trainable_token_indices": [1]}, "rows of the embedding"),
        ({"init_lora_weights": "pissa_niter_4"}, "base's weights"),
        ({"a_later_invention": {"x": 1}}, "a_later_invention"),
        ({"rank_pattern": {"^model.*q_proj$": 4}}, "no regular expression"),
        ({"r": 5}, "rows of lora_A"),
        ({"r": 0}, "whole number"),
    ],
)
def test_adapter_that_cannot_be_applied_exactly_is_refused_with_the_reason(stated, why, tmp_path):
    base = saved_model("llama", tmp_path / "base")
    write_adapter(tmp_path / "a", base, **{**stated, "rank": 4})
    with pytest.raises(UnsupportedFormat, match=why.replace("(", r"\(")):
        read_adapter(tmp_path / "a")


def test_adapter_of_another_base_or_of_a_part_without_a_projection_is_refused(tmp_path):
    base = saved_model("llama", tmp_path / "base")
    other = saved_model("llama-head-dim", tmp_path / "other")
    spec = read_spec(tmp_path / "base")
    with pytest.raises(UnsupportedFormat, match="trained on another base"):
        adapter_targets(read_adapter(write_adapter(tmp_path / "a", other)), spec)
    with pytest.raises(UnsupportedFormat, match=r"changes lm_head, .*q_proj"):
        adapter_targets(read_adapter(write_adapter(tmp_path / "b", base, targets=("lm_head",))), spec)
    (tmp_path / "b" / "adapter_model.safetensors").unlink()
    with pytest.raises(UnsupportedFormat, match=r"no adapter_model\.safetensors"):
        read_adapter(tmp_path / "b")


@pytest.mark.parametrize("stored", [gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_0])
def test_adapter_of_a_quantised_gguf_base_adds_to_what_its_blocks_decode_to(stored, tmp_path):
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
    base = saved_case("Llama", sizes, tmp_path / "hf")
    write_gguf(tmp_path / "base.gguf", base, "llama", stored)  # base now holds the rounded numbers
    folder = write_adapter(tmp_path / "lora", base)
    merged = copy.deepcopy(base)
    merge(merged, folder)
    core = built(tmp_path / "base.gguf", {"lora": folder}).core
    for index, prompt in enumerate(prompts()):
        core.add(Submit(f"lora{index}", prompt, GREEDY, adapter="lora"))
        core.add(Submit(f"base{index}", prompt, GREEDY))
    found, _ = run(core)
    for index, prompt in enumerate(prompts()):
        for kind, model in (("lora", merged), ("base", base)):
            tokens, logprobs = found[f"{kind}{index}"]
            logits = torch.log_softmax(true_logits(model, prompt + tokens)[len(prompt) - 1 : -1], dim=-1)
            assert tokens == logits.argmax(dim=-1).tolist()
            said = logits.gather(1, torch.tensor(tokens)[:, None]).squeeze(1)
            torch.testing.assert_close(torch.tensor(logprobs), said, atol=3e-4, rtol=0)


def test_guesses_in_adapter_rows_are_checked_with_the_adapter(tmp_path):
    base = saved_model("llama", tmp_path / "base")
    adapters = {"a": write_adapter(tmp_path / "a", base)}
    prompt = [3, 4, 5, 6] * 12  # repeats itself, so that there is something to guess
    greedy = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)
    found = []
    for guesses in (0, 4):
        core = built(tmp_path / "base", adapters, speculation_tokens=guesses).core
        for name in ("", "a"):
            core.add(Submit(f"{guesses}{name}", prompt, greedy, adapter=name))
        found.append([tokens for tokens, _ in run(core)[0].values()])
    assert found[0] == found[1]
    assert found[0][0] != found[0][1]


def test_replayed_steps_with_adapter_rows_give_the_tokens_of_eager_ones(tmp_path):
    base = saved_model("llama", tmp_path / "base")
    adapters = {
        "a": write_adapter(tmp_path / "a", base, seed=1),
        "b": write_adapter(tmp_path / "b", base, seed=2, rank=7),
    }
    spec = read_spec(tmp_path / "base")
    greedy = SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True)
    written = []
    for device in (CpuDevice(), GraphDevice()):
        bank = AdapterBank(spec, [named(read_adapter(path), name) for name, path in adapters.items()])
        model = load_model(spec, "cpu", torch.float32, lambda done, total: None, adapters=bank)
        model.replayable = True  # the device that stands in runs its graphs anew
        core = EngineCore(
            model,
            solve_layout(spec, bytes_per_element=4, page_tokens=16),
            num_large_pages=200,
            kv_dtype=torch.float32,
            device=device,
            knobs=Knobs(max_running=8, token_budget=64),
            max_context_tokens=128,
            vocab_size=spec.vocab_size,
            adapters=bank.numbers,
        )
        while core.prepare():
            pass
        for index, prompt in enumerate(prompts()):
            # The base's go on alone at the end, in graphs of their own.
            core.add(Submit(f"{index}", prompt, msgspec.structs.replace(greedy, max_tokens=24)))
            core.add(Submit(f"{index}a", prompt, greedy, adapter="a"))
            core.add(Submit(f"{index}b", prompt[::-1], msgspec.structs.replace(greedy, max_tokens=9), adapter="b"))
        found, ends = run(core)
        assert {end.finish for end in ends.values()} == {FinishReason.LENGTH}
        written.append({name: tokens for name, (tokens, _) in found.items()})
    assert written[0] == written[1]
    assert device.captures >= 8
    assert device.replays > 20
