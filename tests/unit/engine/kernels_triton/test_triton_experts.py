"""The Triton experts against the plain torch truth."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed: `make test` installs it for these tests")

from engine.kernels import reference_experts
from engine.kernels.triton import experts as triton_experts
from engine.kernels.triton import route as triton_route
from engine.kernels.triton.few_experts import tile_depth
from engine.kernels.triton.grouped_experts import GroupedTiles, grouped_parts
from engine.kernels.triton.sorted_pairs import sorted_pairs
from engine.quant.expert_stack import ExpertStack

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = {torch.float32: 3e-3 if DEVICE == "cuda" else 2e-5, torch.bfloat16: 2e-2}
DTYPES = [torch.float32] + ([torch.bfloat16] if DEVICE == "cuda" else [])


def case(tokens: int, dtype: torch.dtype, *, experts: int = 6, choices: int = 2, hidden: int = 40, inner: int = 24):
    torch.manual_seed(tokens)
    x = torch.randn(tokens, hidden, device=DEVICE).to(dtype)
    scores = torch.randn(tokens, experts, device=DEVICE)
    scores[:, 3] -= 100.0  # an expert nobody asks for
    ids, weights = reference_experts.route(scores, choices)
    gate_up = ExpertStack((torch.randn(experts * 2 * inner, hidden, device=DEVICE) * 0.2).to(dtype), experts)
    down = ExpertStack((torch.randn(experts * hidden, inner, device=DEVICE) * 0.2).to(dtype), experts)
    return x, ids, weights, gate_up, down


def error_of(got: torch.Tensor, truth: torch.Tensor) -> float:
    return float((got.double() - truth.double()).norm() / truth.double().norm())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens", [1, 3, 16, 17, 70])
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "swiglu_clamped"])
@pytest.mark.parametrize("bias", [False, True])
def test_experts_match_the_reference(dtype, tokens, activation, bias):
    arguments = case(tokens, dtype)
    biases = (None, None)
    if bias:
        biases = (torch.randn(6, 48, device=DEVICE).to(dtype), torch.randn(6, 40, device=DEVICE).to(dtype))
    truth = reference_experts.experts(*arguments, *biases, activation)
    got = triton_experts.experts(*arguments, *biases, activation)
    assert error_of(got, truth) < TOLERANCE[dtype]


@pytest.mark.parametrize("tokens", [5, 40])
def test_a_token_does_not_depend_on_the_others_of_its_form(tokens):
    x, ids, weights, gate_up, down = case(tokens, torch.float32)
    whole = triton_experts.experts(x, ids, weights, gate_up, down)
    turned = triton_experts.experts(x.flip(0), ids.flip(0), weights.flip(0), gate_up, down)
    if DEVICE == "cuda":
        assert torch.equal(whole, turned.flip(0))
    else:  # the interpreter multiplies with a host library, whose sums depend on where a row stands
        assert error_of(whole, turned.flip(0)) < 1e-6


@pytest.mark.parametrize("activation", ["silu", "swiglu_clamped"])
@pytest.mark.parametrize("tokens", [1, 30, 70])
@pytest.mark.parametrize("width", [(40, 24), (64, 48)])
def test_grouped_experts_match_the_reference(width, tokens, activation):
    """Products by descriptors: also of tiles that end in another expert's rows, or beyond all."""
    hidden, inner = width
    dtype = torch.float16
    x, ids, weights, gate_up, down = case(tokens, dtype, hidden=hidden, inner=inner)
    biases = (torch.randn(6, 2 * inner, device=DEVICE).to(dtype), torch.randn(6, hidden, device=DEVICE).to(dtype))
    truth = reference_experts.experts(x, ids, weights, gate_up, down, *biases, activation)
    tiles = (GroupedTiles(16, 16, 32, 4, 2), GroupedTiles(16, 32, 16, 4, 2))
    found = sorted_pairs(ids, 6, 16)
    parts = grouped_parts(x, 2, weights, gate_up, down, *biases, activation, found, tiles)
    assert error_of(parts.view(tokens, 2, hidden).float().sum(dim=1), truth) < 3e-3


@pytest.mark.parametrize("tokens", [17, 24, 25, 56, 57])
def test_any_number_of_tokens_finds_its_tiles(tokens, monkeypatch):
    """As on a device that copies tiles by descriptors; one expert, so that averages are what tokens say."""
    monkeypatch.setattr("engine.kernels.triton.experts.copies_tiles", lambda device: True)
    monkeypatch.setattr("engine.kernels.triton.experts.FEW_PAIRS", 0)
    x, ids, weights, gate_up, down = case(tokens, torch.float16, hidden=40, inner=24)
    gate_up, down = (ExpertStack(stack.weight[: stack.rows], 1) for stack in (gate_up, down))
    ids, weights = torch.zeros_like(ids[:, :1]), weights[:, :1].contiguous()
    truth = reference_experts.experts(x, ids, weights, gate_up, down)
    assert error_of(triton_experts.experts(x, ids, weights, gate_up, down), truth) < 3e-3


@pytest.mark.skipif(DEVICE == "cpu", reason="a GPU alone copies tiles by descriptors")
@pytest.mark.parametrize("tokens", [100, 144, 200, 700])
def test_many_tokens_take_grouped_experts(tokens):
    x, ids, weights, gate_up, down = case(tokens, torch.bfloat16, hidden=256, inner=96)
    truth = reference_experts.experts(x, ids, weights, gate_up, down)
    whole = triton_experts.experts(x, ids, weights, gate_up, down)
    assert error_of(whole, truth) < 1e-2
    turned = triton_experts.experts(x.flip(0), ids.flip(0), weights.flip(0), gate_up, down)
    assert torch.equal(whole, turned.flip(0))


@pytest.mark.parametrize(
    ("depth", "most", "found"),
    [(2048, 512, (512, 4)), (768, 256, (256, 3)), (1408, 512, (128, 1)), (40, 512, (64, 1)), (7168, 512, (512, 2))],
)
def test_few_tokens_ask_for_a_k_in_tiles_that_divide_it(depth, most, found):
    assert tile_depth(depth, most) == found


@pytest.mark.parametrize("tokens", [7, 100, 300])
def test_pairs_are_sorted_in_segments_as_in_one(tokens, monkeypatch):
    """Each expert's pairs lie together and in their order, also where several programs place them."""
    ids = case(tokens, torch.float32)[1]
    monkeypatch.setattr("engine.kernels.triton.sorted_pairs.BLOCK", 32)
    order, counts, starts, tile_ends = sorted_pairs(ids, 6, 16).tensors
    flat = ids.flatten().to(torch.int64)
    assert torch.equal(order.to(torch.int64), torch.sort(flat, stable=True).indices)
    assert torch.equal(counts.to(torch.int64), torch.bincount(flat, minlength=6))
    assert torch.equal(starts, (counts.cumsum(0) - counts).to(torch.int32))
    assert torch.equal(tile_ends, ((counts + 15) // 16).cumsum(0).to(torch.int32))


def test_every_token_to_one_expert_and_no_tokens():
    x, ids, weights, gate_up, down = case(50, torch.float32)
    ids = torch.stack([torch.full((50,), 2), torch.full((50,), 4)], dim=1).to(torch.int32).to(DEVICE)
    truth = reference_experts.experts(x, ids, weights, gate_up, down)
    assert error_of(triton_experts.experts(x, ids, weights, gate_up, down), truth) < TOLERANCE[torch.float32]
    assert triton_experts.experts(x[:0], ids[:0], weights[:0], gate_up, down).shape == (0, 40)


@pytest.mark.parametrize("experts", [6, 128])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"normalise": False, "scale": 2.5},
        {"score": "sigmoid", "corrected": True},
        {"score": "sigmoid", "corrected": True, "groups": 2, "groups_kept": 1},
    ],
    ids=lambda options: "-".join(options) or "plain",
)
def test_route_matches_the_reference(experts, options):
    torch.manual_seed(experts)
    logits = torch.randn(7, experts, device=DEVICE)
    options = dict(options)
    if options.pop("corrected", False):
        options["correction"] = torch.randn(experts, device=DEVICE)
    truth_ids, truth_weights = reference_experts.route(logits, 3, **options)
    ids, weights = triton_route.route(logits, 3, **options)
    assert ids.tolist() == truth_ids.tolist()
    assert error_of(weights, truth_weights) < 1e-5
    assert triton_route.route(logits[:0], 3, **options)[0].shape == (0, 3)
