"""Kernels that other files hold to the plain torch operators, here against formulas in float64."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed: `make test` installs it for these tests")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

from engine.kernels.reference_sampling import RECORD, SETTINGS_AT, Asked  # noqa: E402
from engine.kernels.triton import choose, norms, quant_experts, rope_kv  # noqa: E402
from engine.kernels.triton import experts as plain_experts  # noqa: E402
from engine.kernels.triton import route as routing  # noqa: E402
from engine.quant.encode import encode  # noqa: E402
from engine.quant.expert_stack import ExpertStack  # noqa: E402

# The interpreter's bfloat16 dot is not usable; a GPU tests it too.
DTYPES = [torch.float32, torch.float16] + ([torch.bfloat16] if DEVICE == "cuda" else [])
NEAR = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 6e-3}
PRODUCT = 3e-3 if DEVICE == "cuda" else 1e-5  # of float32: matrix units take fewer bits of it


def relative(got: torch.Tensor, truth: torch.Tensor) -> float:
    assert truth.dtype is torch.float64
    return float((got.double() - truth).norm() / truth.norm())


def silu_times_up(gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.double().chunk(2, dim=-1)
    return gate * torch.sigmoid(gate) * up


@pytest.mark.parametrize("dtype", DTYPES)
def test_norms_and_gates(dtype):
    torch.manual_seed(0)
    x, residual = (torch.randn(5, 576, device=DEVICE).to(dtype) for _ in range(2))
    weight = torch.rand(576, device=DEVICE)

    def norm(of: torch.Tensor) -> torch.Tensor:
        return of * torch.rsqrt((of * of).mean(-1, keepdim=True) + 1e-5) * weight.double()

    normed, total = norms.add_rms_norm(x, residual, weight, 1e-5)
    assert relative(norms.rms_norm(x, weight, 1e-5), norm(x.double())) < NEAR[dtype]
    assert relative(total, x.double() + residual.double()) < NEAR[dtype]
    assert relative(normed, norm(x.double() + residual.double())) < 2 * NEAR[dtype], "of the rounded sum"
    assert relative(norms.silu_mul(x), silu_times_up(x)) < NEAR[dtype]
    gate, up = x.double().chunk(2, dim=-1)
    gelu = 0.5 * gate * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (gate + 0.044715 * gate**3)))
    assert relative(norms.gelu_mul(x), gelu * up) < NEAR[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tokens", "rotary"), [(3, 64), (rope_kv.MANY_TOKENS + 1, 32)])
def test_heads_are_normed_turned_and_written(dtype, tokens, rotary):
    torch.manual_seed(1)
    heads, groups, dim, page = 4, 2, 64, 16
    q, k, v = (torch.randn(tokens, n, dim, device=DEVICE).to(dtype) for n in (heads, groups, groups))
    angles = torch.rand(50, rotary // 2, device=DEVICE, dtype=torch.float64) * 6
    positions = torch.randint(0, 50, (tokens,), device=DEVICE)
    weights = [torch.rand(dim, device=DEVICE) + 0.5 for _ in range(2)]

    def turned(of: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        of = of.double()
        of = of * torch.rsqrt((of * of).mean(-1, keepdim=True) + 1e-6) * weight.double()
        cos, sin = (part(angles)[positions].unsqueeze(1) for part in (torch.cos, torch.sin))
        first, second, rest = of.split([rotary // 2, rotary // 2, dim - rotary], dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)

    truth_q, truth_k = turned(q, weights[0]), turned(k, weights[1])
    cos_sin = torch.cat([angles.cos(), angles.sin()], dim=1).float()
    view = torch.zeros(tokens // page + 2, 2, groups, page, dim, device=DEVICE).to(dtype)
    at = torch.arange(tokens, device=DEVICE)
    rope_kv.rope_kv_write(q, k, v, positions, cos_sin, view, at // page + 1, at % page, *weights, 1e-6)
    near = 2 * NEAR[dtype]
    assert relative(q, truth_q) < near
    assert relative(view[at // page + 1, 0, :, at % page], truth_k) < near
    assert torch.equal(view[at // page + 1, 1, :, at % page], v)


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
def test_routes(score):
    torch.manual_seed(2)
    logits, correction = torch.randn(9, 40, device=DEVICE) * 3, torch.rand(40, device=DEVICE)
    scores = torch.sigmoid(logits.double()) if score == "sigmoid" else torch.softmax(logits.double(), dim=-1)
    ids, weights = routing.route(logits, 6, score, True, 2.5, correction)
    assert ids.tolist() == (scores + correction.double()).topk(6, dim=-1).indices.tolist()
    kept = scores.gather(-1, ids.long())
    assert relative(weights, kept / kept.sum(dim=-1, keepdim=True) * 2.5) < 1e-5


@pytest.mark.parametrize("tokens", [1, 20, 70] if DEVICE == "cuda" else [20])
@pytest.mark.parametrize("kind", [None, "fp8", "int8", "int4", "fp4_mx"])
def test_experts(kind, tokens):
    torch.manual_seed(3)
    count, depth, inner, choices = 4, 64, 32, 2
    wide = [
        torch.randn(count * rows, columns, device=DEVICE) * 0.2
        for rows, columns in ((2 * inner, depth), (depth, inner))
    ]
    coded = wide if kind is None else [encode(weight, kind, 32 if kind == "int4" else None) for weight in wide]
    up, down = ((w if kind is None else w.dequantize()).double().view(count, -1, w.shape[1]) for w in coded)
    x, weights = torch.randn(tokens, depth, device=DEVICE), torch.rand(tokens, choices, device=DEVICE)
    ids = torch.stack([torch.randperm(count)[:choices] for _ in range(tokens)]).int().to(DEVICE)
    truth = torch.zeros(tokens, depth, dtype=torch.float64, device=DEVICE)
    for token in range(tokens):
        for at, expert in enumerate(ids[token].tolist()):
            inside = silu_times_up(up[expert] @ x[token].double())
            truth[token] += weights[token, at].double() * (down[expert] @ inside)
    stacks = [ExpertStack(weight, count) for weight in coded]
    if kind is None:
        got = plain_experts.experts(x, ids, weights, *stacks, None, None, "silu")
    else:
        got = quant_experts.experts(x, ids, weights, *map(quant_experts.pack, stacks), None, None, "silu")
    assert relative(got, truth) < PRODUCT


@pytest.mark.parametrize("width", [300, 5003])
def test_log_probabilities_and_draws(width):
    torch.manual_seed(4)
    rows, most = 6, 8
    logits = torch.randn(rows, width, device=DEVICE) * 4
    words = torch.full((rows, RECORD), -1, dtype=torch.int32)
    words[:, 0], words[:, 2] = torch.arange(rows), most
    words[:, [3, 4, 7]] = 0
    settings = torch.tensor([[1.3, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0]] * rows)
    settings[:, 4] = torch.tensor([0.0, 0.1, 0.4, 0.6, 0.9, 0.999])
    words[:, SETTINGS_AT:] = settings.view(torch.int32)
    picked = logits.argmax(dim=1).to(torch.int32)
    none = torch.zeros(0, width, dtype=torch.int32, device=DEVICE)
    told = choose.draw_tokens(logits, picked, none, Asked(words.view(-1).to(DEVICE), rows, 0, 0, most, 0))
    truth = torch.log_softmax(logits.double(), dim=-1)
    best = truth.topk(most, dim=-1)
    assert told[:, 1 + most :].tolist() == best.indices.tolist()
    numbers = told[:, : 1 + most].contiguous().view(torch.float32)
    wanted = torch.cat([truth.gather(1, picked.long().unsqueeze(1)), best.values], dim=1)
    assert float((numbers.double() - wanted).abs().max()) < 1e-5
    reached = torch.softmax(logits.double() / 1.3, dim=-1).cumsum(dim=-1)
    uniform = settings[:, 4].double().to(DEVICE)
    token = picked.long().unsqueeze(1)
    before = torch.where(token > 0, reached.gather(1, (token - 1).clamp(min=0)), 0.0).squeeze(1)
    assert bool((before <= uniform + 1e-5).all())
    assert bool((reached.gather(1, token).squeeze(1) >= uniform - 1e-5).all())
