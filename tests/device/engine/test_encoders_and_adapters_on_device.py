"""Encoders on an accelerator, and adapter rows beside base rows whose steps are replayed."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

from engine.builder import build_engine
from engine.messages import AdapterSource, Embed, FinishReason, Knobs, SamplingParams, Submit, WorkerConfig
from tests.fakes.adapters import merge, write_adapter
from tests.fakes.encoders import CASES, saved_encoder, texts, true_vector
from tests.fakes.family_models import prompts, saved_model, true_logits

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
]
NEAR = {"float32": 2e-3, "bfloat16": 6e-2}


@pytest.mark.parametrize("dtype", list(NEAR))
@pytest.mark.parametrize("name", CASES)
def test_encoder_on_a_device_gives_the_vectors_of_transformers(name: str, dtype: str, tmp_path: Path) -> None:
    model = saved_encoder(name, tmp_path)
    config = WorkerConfig("w", "m", str(tmp_path), "", device="cuda:0", dtype=dtype, knobs=Knobs(token_budget=256))
    core = build_engine(config, lambda stage, done, total: None).core
    for index, text in enumerate(texts(40)):
        core.embed(Embed(f"{index}", text))
    found = {}
    while core.has_work():
        found |= {delta.request_id: delta for delta in core.step().deltas}
    for index, text in enumerate(texts(40)):
        delta = found[f"{index}"]
        assert delta.finish is FinishReason.STOP
        vector = torch.frombuffer(bytearray(delta.embedding), dtype=torch.float32)
        torch.testing.assert_close(vector, true_vector(model, text, CASES[name][1]), atol=NEAR[dtype], rtol=0)


def test_adapter_and_base_rows_on_a_device_are_each_the_best_by_transformers(tmp_path: Path) -> None:
    base = saved_model("llama", tmp_path / "base")
    folder = write_adapter(tmp_path / "lora", base)
    merged = copy.deepcopy(base)
    merge(merged, folder)
    config = WorkerConfig(
        "w",
        "m",
        str(tmp_path / "base"),
        "",
        device="cuda:0",
        dtype="float32",
        kv_bytes=1 << 24,
        max_context_tokens=256,
        knobs=Knobs(max_running=16, token_budget=64, prefill_chunk=32),
        adapters=(AdapterSource("lora", str(folder)),),
    )
    core = build_engine(config, lambda stage, done, total: None).core
    written: dict[str, list[int]] = {}
    for index, prompt in enumerate(prompts()):
        # The base's are longer, so that they go on alone, in replayed steps.
        for kind, adapter, tokens in (("base", "", 24), ("lora", "lora", 12)):
            sampling = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
            core.add(Submit(f"{kind}{index}", prompt, sampling, adapter=adapter))
    while core.has_work():
        for delta in core.step().deltas:
            written.setdefault(delta.request_id, []).extend(delta.token_ids)
    for index, prompt in enumerate(prompts()):
        for kind, model in (("base", base), ("lora", merged)):
            tokens = written[f"{kind}{index}"]
            logits = true_logits(model, prompt + tokens)[len(prompt) - 1 : -1]
            chosen = logits.gather(1, torch.tensor(tokens).unsqueeze(1)).squeeze(1)
            assert float(((logits.amax(dim=1) - chosen) / logits.std(dim=1)).max()) < 2e-2
