"""Decode steps straight from the host's buffers give what steps through a batch give."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch

from engine.builder import build_engine
from engine.core import EngineCore
from engine.kernels.cpu import library
from engine.messages import FinishReason, Knobs, SamplingParams, Submit, TokenDelta, WorkerConfig
from engine.runner.direct import DirectDecode
from engine.scheduler.chunk import ScheduledChunk
from tests.fakes.family_models import saved_model

pytestmark = pytest.mark.skipif(library.absent_reason() is not None, reason="needs the CPU library")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder, threads = tmp_path_factory.mktemp("llama"), torch.get_num_threads()
    saved_model("llama-head-dim", folder)
    yield folder
    torch.set_num_threads(threads)


def engine(path: Path, *, direct: bool, kv_tokens: int = 2048) -> EngineCore:
    knobs = Knobs(max_running=8, token_budget=32, prefill_chunk=16)
    config = WorkerConfig(
        "w", "tiny", str(path), "", kv_tokens=kv_tokens, max_context_tokens=128, threads=1, knobs=knobs
    )
    core = build_engine(config, lambda stage, done, total: None).core
    assert isinstance(core, EngineCore)
    assert isinstance(core.runner._direct, DirectDecode)
    if not direct:
        core.runner._direct = None
    return core


def submits() -> list[Submit]:
    """Of unlike lengths, greedy and drawn, with penalties, biases and log-probabilities."""
    extras = [
        SamplingParams(1, temperature=0.0),
        SamplingParams(1, temperature=0.9, seed=3, top_p=0.8),
        SamplingParams(1, temperature=0.0, repetition_penalty=1.3, top_logprobs=2),
        SamplingParams(1, temperature=0.7, seed=5, logit_bias={7: 4.0}),
    ]
    found = []
    for number in range(12):
        sampling = msgspec.structs.replace(extras[number % 4], max_tokens=9 + 5 * number)
        found.append(Submit(f"r{number}", [(7 * number + place) % 90 for place in range(1 + 3 * number)], sampling))
    return found


def texts(core: EngineCore) -> dict[str, list[TokenDelta]]:
    """All deltas of all requests, some of which come while others run."""
    waiting, out = submits(), dict[str, list[TokenDelta]]()
    while waiting or core.has_work():
        if waiting:
            core.add(waiting.pop(0))
        for delta in core.step().deltas:
            out.setdefault(delta.request_id, []).append(msgspec.structs.replace(delta, usage=None))
    assert core.kv.num_active == 0
    return out


@pytest.mark.parametrize("kv_tokens", [2048, 192])
def test_direct_steps_equal_those_through_a_batch(model: Path, kv_tokens: int) -> None:
    ours, theirs = (engine(model, direct=direct, kv_tokens=kv_tokens) for direct in (True, False))
    assert texts(ours) == texts(theirs)
    assert (ours.stats().preemptions_total > 0) == (kv_tokens == 192)
    assert ours.stats().preemptions_total == theirs.stats().preemptions_total


def test_decode_steps_go_direct_and_prompts_do_not(model: Path) -> None:
    core = engine(model, direct=True)
    went: list[tuple[bool, int]] = []
    inner = core.runner._direct
    assert inner is not None
    run = inner.run

    def watched(chunks: list[ScheduledChunk]) -> tuple[torch.Tensor, list[int]] | None:
        found = run(chunks)
        went.append((found is not None, len(chunks)))
        return found

    inner.run = watched  # type: ignore[method-assign]
    core.add(Submit("one", [5] * 8, SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True)))
    while core.has_work():
        core.step()
    assert went == [(True, 1)] * 5  # the first of six tokens comes with the prompt


def test_direct_step_without_a_number_ends_its_request_alone(model: Path) -> None:
    core = engine(model, direct=True)
    greedy = SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True)
    for name in ("bad", "good"):
        core.add(Submit(name, [3, 4, 5] if name == "bad" else [8, 9], greedy))
    core.step()
    bad = core.scheduler.requests["bad"]
    for view in core.runner._kv_views:
        view[bad.pages.tables[0][0]] = float("nan")
    ends: dict[str, FinishReason] = {}
    while core.has_work():
        ends |= {delta.request_id: delta.finish for delta in core.step().deltas if delta.finish is not None}
    assert ends == {"bad": FinishReason.ERROR, "good": FinishReason.LENGTH}
