"""Experts on every instruction set, against the reference and float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.errors import WorkerError
from engine.kernels import reference_experts, registry
from engine.kernels.cpu import ops
from engine.kernels.cpu.experts import GATES, experts_exact, experts_int8, pack_experts
from engine.kernels.registry import OpQuery
from engine.quant.expert_stack import ExpertStack

EachIsa = Callable[[], Iterator[str]]
EXPERTS, HIDDEN, INNER, CHOICES = 5, 64, 96, 2


def stacks(random_weight: Callable[..., Any], kinds: tuple[str, str]) -> tuple[ExpertStack, ExpertStack]:
    gate_up = random_weight(kinds[0], EXPERTS * 2 * INNER, HIDDEN, seed=1).stored
    return ExpertStack(gate_up, EXPERTS), ExpertStack(
        random_weight(kinds[1], EXPERTS * HIDDEN, INNER, seed=2).stored, EXPERTS
    )


def routed(tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(tokens)
    ids = torch.stack([torch.randperm(EXPERTS, generator=g)[:CHOICES] for _ in range(tokens)]).to(torch.int32)
    return torch.randn(tokens, HIDDEN, generator=g), ids, torch.rand(tokens, CHOICES, generator=g)


@pytest.mark.parametrize("kinds", [("F32", "F32"), ("Q4_0", "Q8_0"), ("BF16", "Q5_1"), ("MXFP4", "MXFP4")])
@pytest.mark.parametrize("activation", sorted(GATES))
def test_experts_every_isa_equals_the_reference(
    kinds: tuple[str, str], activation: str, each_isa: EachIsa, random_weight: Callable[..., Any]
) -> None:
    gate_up, down = stacks(random_weight, kinds)
    packed = pack_experts(gate_up), pack_experts(down)
    biases = torch.randn(EXPERTS, 2 * INNER), torch.randn(EXPERTS, HIDDEN)
    step = routed(17)
    if "MXFP4" in kinds:  # read by the kernels alone: their own numbers stand in for the file's
        plain = [
            random_weight(k, s.weight.shape[0], s.columns, seed=i).numbers.float()
            for i, (k, s) in enumerate(zip(kinds, (gate_up, down), strict=True), 1)
        ]
        gate_up, down = ExpertStack(plain[0], EXPERTS), ExpertStack(plain[1], EXPERTS)
    truth = reference_experts.experts(*step, gate_up, down, *biases, activation)
    results = [experts_exact(*step, *packed, *biases, activation) for _ in each_isa()]
    assert torch.allclose(results[0], truth, atol=2e-4 * float(truth.abs().max()), rtol=1e-4)
    assert all(r.equal(results[0]) for r in results)


@pytest.mark.parametrize("run", [experts_exact, experts_int8])
def test_experts_token_is_bit_identical_whatever_is_beside_it(
    run: Callable[..., Tensor], random_weight: Callable[..., Any]
) -> None:
    packed = [pack_experts(s) for s in stacks(random_weight, ("Q4_1", "Q8_0"))]
    x, ids, weights = routed(33)
    alone = torch.cat([run(x[i : i + 1], ids[i : i + 1], weights[i : i + 1], *packed) for i in range(33)])
    assert run(x, ids, weights, *packed).equal(alone)


def test_experts_int8_is_near_the_exact_form(random_weight: Callable[..., Any], each_isa: EachIsa) -> None:
    packed = [pack_experts(s) for s in stacks(random_weight, ("Q4_1", "Q8_0"))]
    step = routed(9)
    exact = experts_exact(*step, *packed)
    results = [experts_int8(*step, *packed) for _ in each_isa()]
    assert float((results[0] - exact).norm() / exact.norm()) < 0.03
    assert all(r.equal(results[0]) for r in results)


def test_experts_id_out_of_range_is_refused(random_weight: Callable[..., Any]) -> None:
    packed = [pack_experts(s) for s in stacks(random_weight, ("F32", "F32"))]
    x, ids, weights = routed(3)
    ids[1, 1] = EXPERTS
    with pytest.raises(WorkerError, match="out of range"):
        experts_exact(x, ids, weights, *packed)


def test_experts_of_no_tokens_give_none(random_weight: Callable[..., Any]) -> None:
    packed = [pack_experts(s) for s in stacks(random_weight, ("F32", "F32"))]
    x, ids, weights = routed(1)
    assert experts_exact(x[:0], ids[:0], weights[:0], *packed).shape == (0, HIDDEN)


def test_registry_chooses_the_experts_form_by_both_matrices() -> None:
    query = OpQuery("cpu", "float32", weight_kind="Q4_K", down_kind="Q6_K", num_experts=8, gate="silu")
    assert registry.select("experts", query).name == "cpu"
    assert registry.select("experts", replace(query, activation="int8")).name == "cpu-int8"
    assert registry.select("experts", replace(query, activation="int8", down_kind="BF16")).name == "cpu"
    assert registry.select("experts", replace(query, gate="tanh")).name == "reference"


def test_pick_greedy_refuses_rows_that_are_not_finite(each_isa: EachIsa) -> None:
    logits = torch.randn(4, 300)
    logits[1, 7], logits[2, 299], logits[3, 0] = float("inf"), float("-inf"), float("nan")
    expected = [int(logits[0].argmax()), -1, -1, -1]
    for _ in each_isa():
        found = ops.pick_greedy(logits)
        assert found.dtype is torch.int32
        assert found.tolist() == expected
