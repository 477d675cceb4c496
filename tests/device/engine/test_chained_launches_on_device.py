"""Kernels that start while the one before is at work: the same numbers, bit for bit, as one after the other."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from engine.quant.encode import encode

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
]
LAYERS, HIDDEN, INNER, VOCAB = 12, 512, 768, 4096
EXPERTS = 16
REPLAYS = 50


def weights() -> list[tuple[Tensor, ...]]:
    torch.manual_seed(1)
    shapes = ((2 * INNER, HIDDEN), (HIDDEN, INNER))
    return [tuple(torch.randn(shape, device="cuda") * 0.06 for shape in shapes) for _ in range(LAYERS)]


def step_of(kind: str) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """A decoder without its attention: short kernels, each of which reads what the last one wrote."""
    from engine.kernels.triton import few_rows, gemv, greedy, norms, quant_dots
    from engine.kernels.triton.coded import coded

    norm = torch.rand(HIDDEN, device="cuda") + 0.5
    head = (torch.randn(VOCAB, HIDDEN, device="cuda") * 0.1).to(torch.bfloat16)
    if kind == "plain":
        layers = [tuple(w.to(torch.bfloat16) for w in both) for both in weights()]
    else:
        layers = [tuple(coded(encode(w, kind)) for w in both) for both in weights()]

    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        residual = torch.zeros_like(x)
        for up, down in layers:
            if kind == "plain":
                normed, residual = norms.add_rms_norm(x, residual, norm, 1e-5)
                x = gemv.gemv(norms.silu_mul(gemv.gemv(normed, up)), down)
            elif kind == "fp8":
                normed, residual = norms.add_rms_norm(x, residual, norm, 1e-5)
                x = few_rows.few_rows(norms.silu_mul(few_rows.few_rows(normed, up)), down)
            else:
                rows, residual = quant_dots.form(up).add_rms_norm(x, residual, norm, 1e-5)
                gates = few_rows.of_fine(rows, up, x.dtype)
                x = few_rows.of_fine(quant_dots.form(down).gate(gates, "silu"), down, x.dtype)
        normed, residual = norms.add_rms_norm(x, residual, norm, 1e-5)
        return residual, greedy.pick_greedy(gemv.gemv(normed, head).float())

    return step


def step_of_experts() -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """The same with experts: a few tokens' pairs, tiles of rows, or rows grouped, by how many tokens there are."""
    from engine.kernels.triton import experts, gemv, greedy, norms, route
    from engine.quant.expert_stack import ExpertStack

    torch.manual_seed(1)
    norm = torch.rand(HIDDEN, device="cuda") + 0.5
    head = (torch.randn(VOCAB, HIDDEN, device="cuda") * 0.1).to(torch.bfloat16)
    layers = []
    for _ in range(LAYERS):
        shapes = ((EXPERTS, HIDDEN), (EXPERTS * 2 * INNER, HIDDEN), (EXPERTS * HIDDEN, INNER))
        router, up, down = ((torch.randn(shape, device="cuda") * 0.06).to(torch.bfloat16) for shape in shapes)
        layers.append((router, ExpertStack(up, EXPERTS), ExpertStack(down, EXPERTS)))

    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        residual = torch.zeros_like(x)
        for router, up, down in layers:
            normed, residual = norms.add_rms_norm(x, residual, norm, 1e-5)
            ids, shares = route.route(gemv.linear(normed, router), 4)
            x = experts.experts(normed, ids, shares, up, down)
        normed, residual = norms.add_rms_norm(x, residual, norm, 1e-5)
        return residual, greedy.pick_greedy(gemv.linear(normed, head).float())

    return step


def one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    from engine.kernels.triton import (
        experts,
        few_experts,
        fine_rows,
        fp8_rows,
        gemv,
        greedy,
        grouped_experts,
        norms,
        quant_dots,
        route,
        sorted_pairs,
    )

    modules = (fine_rows, fp8_rows, gemv, greedy, norms, quant_dots)
    for module in (*modules, experts, few_experts, grouped_experts, route, sorted_pairs):
        monkeypatch.setattr(module, "chains", lambda device: False)
        monkeypatch.setattr(module, "launch", lambda device: {})


@pytest.mark.parametrize(
    ("kind", "rows"),
    [("plain", 2), ("fp8", 2), ("int4", 2), ("fp4_nv", 2), ("experts", 2), ("experts", 40), ("experts", 200)],
)
def test_chained_kernels_give_what_they_give_one_after_the_other(
    kind: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine.kernels.triton.chained import chains

    if not chains(torch.device("cuda:0")):
        pytest.skip("kernels are not chained on this device")
    step = step_of_experts() if kind == "experts" else step_of(kind)
    inputs = [torch.randn(rows, HIDDEN, device="cuda").to(torch.bfloat16) for _ in range(REPLAYS)]
    static = inputs[0].clone()
    step(static)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = step(static)
    got = []
    for x in inputs:  # nothing waits in between: what a step left over is overwritten while the next one begins
        static.copy_(x)
        graph.replay()
        got.append(tuple(part.clone() for part in replayed))
    eager = [step(x) for x in inputs]
    torch.cuda.synchronize()
    one_after_the_other(monkeypatch)
    for turn, x in enumerate(inputs):
        truth = step(x)
        assert torch.isfinite(truth[0]).all()
        for name, found in (("replayed", got[turn]), ("eager", eager[turn])):
            assert torch.equal(found[0], truth[0]), (name, turn)
            assert torch.equal(found[1], truth[1]), (name, turn)
