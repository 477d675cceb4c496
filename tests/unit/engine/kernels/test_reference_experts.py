"""Routing and experts beside sums written out token by token."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from engine.kernels import reference_experts
from engine.kernels.reference_experts import clamped_swiglu, experts, gelu_mul, route
from engine.quant.expert_stack import ExpertStack
from engine.quant.quant_tensor import QuantTensor

EXPERTS, HIDDEN, INNER, CHOSEN = 5, 32, 64, 2


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def by_hand(
    x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, up: torch.Tensor, down: torch.Tensor
) -> torch.Tensor:
    rows = []
    for row, chosen, shares in zip(x, ids.tolist(), weights.tolist(), strict=True):
        total = torch.zeros(HIDDEN)
        for expert, share in zip(chosen, shares, strict=True):
            gate, value = (up[expert] @ row).chunk(2)
            total += share * (down[expert] @ (F.silu(gate) * value))
        rows.append(total)
    return torch.stack(rows) if rows else x


@pytest.mark.parametrize("tokens", [0, 1, 9])
@pytest.mark.parametrize("captured", [False, True])
def test_experts_equal_sums_by_hand_with_and_without_asking(
    tokens: int, captured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    up, down = draw(EXPERTS, 2 * INNER, HIDDEN, seed=1), draw(EXPERTS, HIDDEN, INNER, seed=2)
    x = draw(tokens, HIDDEN, seed=3)
    ids, weights = route(draw(tokens, EXPERTS, seed=4), CHOSEN)
    stacks = ExpertStack(up.flatten(0, 1), EXPERTS), ExpertStack(down.flatten(0, 1), EXPERTS)
    if captured:  # the way of an accelerator, which must not wait for the device
        monkeypatch.setattr(reference_experts, "asks_device", lambda x: False)
    torch.testing.assert_close(
        experts(x, ids, weights, *stacks), by_hand(x, ids, weights, up, down), atol=1e-4, rtol=1e-4
    )


def test_experts_of_quantised_stacks_equal_those_of_their_numbers() -> None:
    plain = [draw(EXPERTS * 2 * INNER, HIDDEN, seed=1), draw(EXPERTS * HIDDEN, INNER, seed=2)]
    packed = [gguf.quantize(p.numpy(), gguf.GGMLQuantizationType.Q8_0) for p in plain]
    stacks = [
        ExpertStack(QuantTensor("Q8_0", torch.from_numpy(q), (p.shape[0], p.shape[1])), EXPERTS)
        for p, q in zip(plain, packed, strict=True)
    ]
    decoded = [
        ExpertStack(torch.from_numpy(gguf.dequantize(q, gguf.GGMLQuantizationType.Q8_0).astype(np.float32)), EXPERTS)
        for q in packed
    ]
    ids, weights = route(draw(6, EXPERTS), CHOSEN)
    x = draw(6, HIDDEN, seed=5)
    biases = draw(EXPERTS, 2 * INNER, seed=6), draw(EXPERTS, HIDDEN, seed=7)
    found = experts(x, ids, weights, *stacks, *biases, "swiglu_clamped")
    assert torch.equal(found, experts(x, ids, weights, *decoded, *biases, "swiglu_clamped"))


def test_route_by_softmax_takes_the_best_and_normalises_when_told() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0, 2.0]])
    shares = torch.softmax(logits, dim=-1)[0]
    ids, weights = route(logits, 2, normalise=False, scale=2.0)
    assert ids.tolist() == [[1, 3]]
    torch.testing.assert_close(weights[0], 2 * shares[[1, 3]])
    _, weights = route(logits, 2)
    torch.testing.assert_close(weights[0], shares[[1, 3]] / shares[[1, 3]].sum())


def test_route_with_correction_changes_the_choice_but_not_the_weights() -> None:
    logits = torch.tensor([[1.0, 0.5, -1.0]])
    ids, weights = route(logits, 1, "sigmoid", normalise=False, correction=torch.tensor([0.0, 0.0, 5.0]))
    assert ids.tolist() == [[2]]
    torch.testing.assert_close(weights, torch.sigmoid(torch.tensor([[-1.0]])))


def test_route_with_groups_leaves_out_the_best_expert_of_a_poor_group() -> None:
    scores = torch.tensor([[0.9, 0.1, 0.6, 0.55]])  # two groups, worth 1.0 and 1.15
    ids, _ = route(torch.logit(scores), 2, "sigmoid", groups=2, groups_kept=1)
    assert ids.tolist() == [[2, 3]]
    ids, _ = route(torch.logit(scores), 2, "sigmoid", groups=2, groups_kept=1, group_top=1)
    assert ids.tolist() == [[0, 1]]


def test_gates_follow_their_formulas_at_the_clamp_and_below() -> None:
    gate_up = torch.tensor([[1.0, 50.0, 2.0, -50.0]])
    gate, up = torch.tensor([1.0, 7.0]), torch.tensor([2.0, -7.0])
    torch.testing.assert_close(clamped_swiglu(gate_up)[0], gate * torch.sigmoid(1.702 * gate) * (up + 1))
    torch.testing.assert_close(gelu_mul(gate_up)[0, 0], F.gelu(torch.tensor(1.0), approximate="tanh") * 2)
