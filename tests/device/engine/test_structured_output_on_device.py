"""On an accelerator: masks are those of the host, and constrained output validates, drawn, replayed and guessed for."""

from __future__ import annotations

import json
import time
from pathlib import Path

import jsonschema
import numpy as np
import pytest
import torch

from engine.builder import build_engine
from engine.core import EngineCore
from engine.devices import open_device
from engine.grammar import GrammarGate
from engine.messages import FinishReason, Grammar, GrammarKind, Knobs, SamplingParams, Submit, WorkerConfig
from engine.runner.constrain import mask_here, mask_there
from tests.fakes.family_models import saved_case
from tests.fakes.schemas import SCHEMAS
from tests.fakes.tiny_text import tiny_compiler, tiny_text

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
]
TEXT = tiny_text()
VOCAB = TEXT.vocab_size + 3
FINITE = [0, 1, 4, 6, 8, 10, 11, 12, 13, 14, 17, 20, 21, 23, 24, 30, 34, 35, 36, 38, 40, 44, 48]  # of few characters


def test_masks_on_the_device_equal_those_on_the_host() -> None:
    device = open_device("cuda:0")
    logits = torch.randn(5, VOCAB)
    picked = logits.argmax(-1).to(torch.int32)
    allowed = np.random.default_rng(1).integers(-(2**31), 2**31, (3, -(-VOCAB // 32)), dtype=np.int32)
    there = logits.to("cuda")
    theirs = mask_there(there, picked.to("cuda"), [0, 2, 4], allowed, device.copy_to_device)
    ours = mask_here(logits, picked, [0, 2, 4], allowed)
    assert theirs.cpu().tolist() == ours.tolist()
    assert torch.equal(there.cpu(), logits)


@pytest.mark.parametrize("guesses", [0, 4])
def test_constrained_output_validates_beside_free_text(guesses: int, tmp_path: Path) -> None:
    saved_case("Llama", {"vocab_size": VOCAB}, tmp_path)
    knobs = Knobs(max_running=16, token_budget=256, prefill_chunk=64, speculation_tokens=guesses)
    config = WorkerConfig(
        "w",
        "tiny",
        str(tmp_path),
        "",
        device="cuda:0",
        dtype="float32",
        kv_tokens=16_384,
        max_context_tokens=256,
        knobs=knobs,
    )
    core = build_engine(config, lambda stage, done, total: None).core
    assert isinstance(core, EngineCore)
    core.gate = GrammarGate(tiny_compiler(TEXT, VOCAB))
    core.scheduler.speculation.heeds_cost = False
    ends = {token: 6.0 for piece in ('"', "}", "]", '"}') for token in TEXT.encode(piece)}
    seen: dict[str, list[int]] = {}
    finish: dict[str, FinishReason] = {}
    for n in FINITE:
        grammar = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMAS[n]))
        sampling = SamplingParams(
            max_tokens=200,
            temperature=n % 3 / 2,
            seed=n,
            logit_bias=ends,
            stop_token_ids=TEXT.stop_token_ids,
            grammar=grammar,
        )
        core.add(Submit(f"{n}", [40 + n, 3], sampling))
    for n in range(6):
        core.add(Submit(f"free{n}", [40 + n, 5], SamplingParams(max_tokens=60, temperature=0.8, seed=n)))
    while core.has_work() or core.is_compiling:
        if not core.has_work():
            time.sleep(0.001)
            continue
        for delta in core.step().deltas:
            assert delta.error is None, delta.error
            seen.setdefault(delta.request_id, []).extend(delta.token_ids)
            if delta.finish is not None:
                finish[delta.request_id] = delta.finish
    assert all(len(seen[f"free{n}"]) == 60 for n in range(6))
    stopped = [n for n in FINITE if finish[str(n)] is FinishReason.STOP]
    assert len(stopped) > len(FINITE) // 2
    for n in stopped:
        jsonschema.validate(json.loads(TEXT.decode(seen[str(n)])), SCHEMAS[n])
    if guesses:
        assert core.stats().draft_accepted_total > 0
