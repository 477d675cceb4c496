"""Quantised experts: in the interpreter on a CPU, compiled on a GPU."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed: `make test` installs it for these tests")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

from engine.kernels import reference_experts  # noqa: E402
from engine.kernels.registry import OpQuery, select  # noqa: E402
from engine.kernels.triton.quant_experts import experts, pack  # noqa: E402
from engine.quant.encode import encode  # noqa: E402
from engine.quant.expert_stack import ExpertStack  # noqa: E402

COUNT, DEPTH, WIDTH, CHOICES = 4, 64, 32, 2
FORMS = [("fp8", None), ("int8", None), ("int4", 32), ("fp4_nv", None), ("fp4_mx", None)]


@pytest.mark.parametrize(("kind", "group"), FORMS)
@pytest.mark.parametrize("tokens", [0, 1, 40])
def test_quantised_experts_match_the_reference(kind: str, group: int | None, tokens: int) -> None:
    torch.manual_seed(0)
    gate_up = encode(torch.randn(COUNT * 2 * WIDTH, DEPTH, device=DEVICE) * 0.1, kind, group)
    down = encode(torch.randn(COUNT * DEPTH, WIDTH, device=DEVICE) * 0.1, kind, group)
    stacks = [ExpertStack(weight, COUNT) for weight in (gate_up, down)]
    x = torch.randn(tokens, DEPTH, device=DEVICE)
    ids = torch.stack([torch.randperm(COUNT)[:CHOICES] for _ in range(max(1, tokens))])[:tokens].int().to(DEVICE)
    weights = torch.rand(tokens, CHOICES, device=DEVICE)
    biases = (torch.randn(COUNT, 2 * WIDTH, device=DEVICE), torch.randn(COUNT, DEPTH, device=DEVICE))
    got = experts(x, ids, weights, *map(pack, stacks), *biases, "silu")
    truth = reference_experts.experts(x, ids, weights, *stacks, *biases, "silu")
    assert got.shape == truth.shape
    if tokens:
        assert float((got - truth).norm() / truth.norm()) < (2e-3 if DEVICE == "cuda" else 2e-5)


def test_stacks_are_offered_their_kernels_by_both_kinds() -> None:
    def name(gate_up: str, down: str) -> str:
        query = OpQuery(
            "cuda", "bfloat16", weight_kind=gate_up, down_kind=down, num_experts=4, capabilities=frozenset({"triton"})
        )
        return select("experts", query).name

    assert name("fp8", "int4") == name("MXFP4", "MXFP4") == "triton-codes"
    assert name("Q4_K", "Q6_K") == "triton-codes"
    assert name("fp8", "int8_mixed") == name("F32", "fp8") == "reference"
    assert name("BF16", "BF16") == "triton"
