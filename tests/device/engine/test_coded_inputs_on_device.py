"""Whole engines whose norms and gates write codes: the same tokens as with a pass of its own, misses told."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.builder import build_engine
from engine.kernels.outlier_misses import misses_of
from engine.layers.linear import CodedRows, Linear, LinearPart
from engine.messages import Knobs, SamplingParams, Submit, WorkerConfig
from tests.fakes.quantised_checkpoints import llama

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
]
REQUESTS, TOKENS = 40, 6  # decode steps of many rows


def written_by(path: Path, weights: str, activation: str, chosen: range = range(REQUESTS)) -> dict[str, list[int]]:
    knobs = Knobs(max_running=64, token_budget=256, prefill_chunk=64)
    config = WorkerConfig(
        "w", "tiny", str(path), "", device="cuda:0", weights=weights, activation=activation, kv_bytes=1 << 24,
        max_context_tokens=64, knobs=knobs,
    )  # fmt: skip
    core = build_engine(config, lambda stage, done, total: None).core
    greedy = SamplingParams(max_tokens=TOKENS, temperature=0.0, ignore_eos=True)
    written: dict[str, list[int]] = {str(i): [] for i in chosen}
    for i in chosen:
        core.add(Submit(str(i), [5 + i, 9, 33, 7 + i % 3], greedy))
    while core.has_work():
        for delta in core.step().deltas:
            written[delta.request_id] += delta.token_ids
    return written


@pytest.mark.parametrize(("weights", "activation"), [("fp8", "fp8"), ("int8", "int8"), ("int8-mixed", "int8")])
def test_tokens_are_those_of_a_pass_of_its_own(
    weights: str, activation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.spec.precision.NARROW", 0)  # products of 8-bit rows want a multiplier a row
    path = llama(tmp_path / "plain")
    coded = 0
    real = Linear.__call__

    def counted(linear: Linear, x: torch.Tensor | CodedRows) -> torch.Tensor:
        nonlocal coded
        coded += isinstance(x, CodedRows)
        return real(linear, x)

    monkeypatch.setattr(Linear, "__call__", counted)
    joined = written_by(path, weights, activation)
    assert coded > 0
    assert all(len(tokens) == TOKENS for tokens in joined.values())
    if weights == "int8-mixed":
        device = torch.device("cuda:0")
        misses_of(device).total()
        torch.cuda.synchronize()
        assert misses_of(device).total() is not None

    def numbers_only(linear: Linear, rows: int) -> LinearPart | None:
        return None

    monkeypatch.setattr(Linear, "coding_part", numbers_only)
    apart = written_by(path, weights, activation)
    same = [joined[key] == apart[key] for key in joined]
    assert sum(same) >= 0.95 * REQUESTS, "sums of another order may turn a tie"
    alone = [written_by(path, weights, activation, range(i, i + 1))[str(i)] == joined[str(i)] for i in (0, 17, 39)]
    assert sum(alone) >= 2, "a request's tokens depend on how many others run"
