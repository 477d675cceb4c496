"""Decoders that embed by their last token, beside transformers, and beside requests that generate."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.builder import build_engine
from engine.errors import UnsupportedFormat
from engine.messages import Embed, FinishReason, Knobs, SamplingParams, Submit, WorkerConfig
from engine.spec import read_spec
from tests.fakes.encoders import write_pooling
from tests.fakes.family_models import CASES, prompts, saved_case, saved_model


def built(folder, **knobs):
    settings = Knobs(**({"max_running": 8, "token_budget": 32, "prefill_chunk": 16} | knobs))
    config = WorkerConfig("w", "m", str(folder), "", kv_tokens=2048, threads=1, dtype="float32", knobs=settings)
    return build_engine(config, lambda stage, done, total: None)


def run(core):
    tokens, ends = {}, {}
    while core.has_work():
        for delta in core.step().deltas:
            tokens.setdefault(delta.request_id, []).extend(delta.token_ids)
            if delta.finish is not None:
                assert delta.request_id not in ends
                ends[delta.request_id] = delta
    return tokens, ends


def last_state(model, prompt):
    with torch.no_grad():
        state = model.model(torch.tensor([prompt])).last_hidden_state[0, -1].float()
    return state / state.norm()


@pytest.mark.parametrize("name", ["qwen3", "olmo2", "gemma2"])
def test_decoder_embeds_by_its_last_token_beside_requests_that_generate(name, tmp_path):
    model = saved_model(name, tmp_path)
    write_pooling(tmp_path, "last")
    alone = built(tmp_path).core
    greedy = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)
    for index, prompt in enumerate(prompts()):
        alone.add(Submit(f"g{index}", prompt, greedy))
    wanted_tokens, _ = run(alone)
    engine = built(tmp_path)
    assert (engine.generates, engine.embedding_dimensions) == (True, 48)
    for index, prompt in enumerate(prompts()):
        engine.core.add(Submit(f"g{index}", prompt, greedy))
        engine.core.embed(Embed(f"e{index}", prompt))
    tokens, ends = run(engine.core)
    for index, prompt in enumerate(prompts()):
        assert tokens[f"g{index}"] == wanted_tokens[f"g{index}"]
        end = ends[f"e{index}"]
        assert (end.finish, tokens[f"e{index}"]) == (FinishReason.STOP, [])
        vector = torch.from_numpy(np.frombuffer(end.embedding, "<f4").copy())
        torch.testing.assert_close(vector, last_state(model, prompt), atol=1e-4, rtol=0)
        assert end.usage.prompt_tokens == len(prompt)


def test_decoder_saved_without_its_head_embeds_and_refuses_to_generate(tmp_path):
    family, changes = CASES["qwen3"]
    model = saved_case(family, changes, tmp_path)
    write_pooling(tmp_path, "last")
    file, config = tmp_path / "model.safetensors", tmp_path / "config.json"
    held = {name.removeprefix("model."): t for name, t in load_file(file).items() if name != "lm_head.weight"}
    save_file(held, file)
    config.write_text(config.read_text().replace("Qwen3ForCausalLM", "Qwen3Model"))
    engine = built(tmp_path)
    assert not engine.generates
    engine.core.embed(Embed("e", prompts()[1]))
    engine.core.add(Submit("g", [1, 2], SamplingParams(max_tokens=2)))
    _, ends = run(engine.core)
    assert ends["g"].error.code == "invalid_parameter"
    vector = torch.from_numpy(np.frombuffer(ends["e"].embedding, "<f4").copy())
    torch.testing.assert_close(vector, last_state(model, prompts()[1]), atol=1e-4, rtol=0)


def test_decoder_that_pools_otherwise_is_refused(tmp_path):
    saved_model("qwen3", tmp_path)
    write_pooling(tmp_path, "mean")
    with pytest.raises(UnsupportedFormat, match="last token"):
        read_spec(tmp_path)


def test_embedding_request_with_the_id_of_a_running_one_is_refused_and_leaves_it_alone(tmp_path):
    saved_model("qwen3", tmp_path)
    write_pooling(tmp_path, "last")
    core = built(tmp_path).core
    core.add(Submit("same", prompts()[1], SamplingParams(max_tokens=3, temperature=0.0, ignore_eos=True)))
    core.embed(Embed("same", prompts()[2]))
    finishes = [delta.finish for _ in range(8) for delta in core.step().deltas if delta.finish]
    assert finishes == [FinishReason.ERROR, FinishReason.LENGTH]
