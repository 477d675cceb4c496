"""Products of bfloat16, which accelerators run, in the interpreter too; other files hold other types to the truth."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed: `make test` installs it for these tests")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

from engine.kernels import reference, reference_experts  # noqa: E402
from engine.kernels.triton import attention, latent, quant_experts, quant_gemm, tile_rows  # noqa: E402
from engine.kernels.triton import experts as triton_experts  # noqa: E402
from engine.kernels.triton.coded import coded  # noqa: E402
from engine.kernels.triton.grouped_experts import GroupedTiles, grouped_parts  # noqa: E402
from engine.kernels.triton.sorted_pairs import sorted_pairs  # noqa: E402
from engine.quant.encode import encode  # noqa: E402
from engine.quant.expert_stack import ExpertStack  # noqa: E402
from tests.fakes.interpreted_bfloat16 import mend_bfloat16  # noqa: E402

NEAR = 6e-3  # rounding of results, 2^-9, and of a probability or a gated number before a product


@pytest.fixture(autouse=True)
def _rounding(monkeypatch):
    mend_bfloat16(monkeypatch)


def half(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=DEVICE).bfloat16()


def error_of(got: torch.Tensor, truth: torch.Tensor) -> float:
    assert got.dtype is torch.bfloat16
    assert torch.isfinite(got).all()
    return float((got.double() - truth.double()).norm() / truth.double().norm())


def pages(contexts: list[int], page: int) -> tuple[torch.Tensor, int]:
    """A table of pages out of order, and how many there are."""
    blocks = [-(-context // page) for context in contexts]
    order = (torch.randperm(sum(blocks)) + 1).to(torch.int32)
    table = torch.zeros(len(contexts), max(blocks), dtype=torch.int32)
    for at, part in enumerate(order.split(blocks)):
        table[at, : len(part)] = part
    return table.to(DEVICE), sum(blocks) + 1


@pytest.mark.parametrize(
    ("queries", "contexts", "options"),
    [
        ([1, 1], [17, 150], {}),  # decode, the longer one in parts
        ([4, 1], [30, 9], {"window_tokens": 11}),  # a few queries of one sequence
        ([40, 3], [70, 33], {"softcap": 3.0}),  # a chunk after others
    ],
)
def test_attention(queries, contexts, options):
    torch.manual_seed(1)
    heads, groups, dim, page = 6, 2, 64, 16
    table, count = pages(contexts, page)
    view, q = half(count, 2, groups, page, dim), half(sum(queries), heads, dim)
    starts = torch.tensor([0, *queries], device=DEVICE).cumsum(0).to(torch.int32)
    arguments = (view, table, starts, torch.tensor(contexts, dtype=torch.int32, device=DEVICE), dim**-0.5)
    truth = reference.paged_attention(q.float(), *arguments, **options)
    assert error_of(attention.paged_attention(q, *arguments, **options), truth) < NEAR


def test_attention_over_latent_rows():
    torch.manual_seed(2)
    table, count = pages([50, 17], 16)
    view, q = half(count, 1, 1, 16, 32), half(4, 20, 32)
    starts = torch.tensor([0, 1, 4], dtype=torch.int32, device=DEVICE)
    arguments = (view, table, starts, torch.tensor([50, 17], dtype=torch.int32, device=DEVICE), 32**-0.5, 24)
    truth = reference.paged_latent_attention(q.float(), *arguments)
    assert error_of(latent.paged_latent_attention(q, *arguments), truth) < NEAR


@pytest.mark.parametrize("kind", [None, "fp8"])
def test_experts(kind):
    torch.manual_seed(3)
    tokens, count, hidden, inner = 20, 4, 64, 32
    wide = [torch.randn(count * n, k, device=DEVICE) * 0.2 for n, k in ((2 * inner, hidden), (hidden, inner))]
    coded_ones = [w.bfloat16() if kind is None else encode(w, kind) for w in wide]
    numbers = [(w if kind is None else w.dequantize()).float() for w in coded_ones]
    x = half(tokens, hidden)
    ids, weights = reference_experts.route(torch.randn(tokens, count, device=DEVICE), 2)
    truth = reference_experts.experts(x.float(), ids, weights, *(ExpertStack(w, count) for w in numbers))
    stacks = [ExpertStack(w, count) for w in coded_ones]
    if kind is None:
        got = triton_experts.experts(x, ids, weights, *stacks)
        tiles = (GroupedTiles(16, 16, 32, 4, 2), GroupedTiles(16, 32, 16, 4, 2))
        parts = grouped_parts(x, 2, weights, *stacks, None, None, "silu", sorted_pairs(ids, count, 16), tiles)
        summed = parts.view(tokens, 2, hidden).float().sum(dim=1).bfloat16()
        assert error_of(summed, truth) < NEAR
    else:
        got = quant_experts.experts(x, ids, weights, *map(quant_experts.pack, stacks), None, None, "silu")
    assert error_of(got, truth) < NEAR


@pytest.mark.parametrize(
    ("kind", "group", "zeros"), [("fp8", None, False), ("int4", 32, True), ("fp4_nv", None, False)]
)
def test_few_rows_and_many_beside_codes(kind, group, zeros):
    torch.manual_seed(4)
    weight = encode(torch.randn(37, 384, device=DEVICE) * 0.1 + 0.05 * zeros, kind, group, asymmetric=zeros)
    packed, numbers = coded(weight), weight.dequantize().double()
    few, many, bias = half(5, 384), half(33, 384), half(37)
    tiles = tile_rows.RowTiles(32, 64, 4, 2, 1)
    assert error_of(tile_rows.tile_rows(few, packed, bias, tiles), few.double() @ numbers.T + bias.double()) < NEAR
    assert error_of(quant_gemm.large_linear(many, packed, bias), many.double() @ numbers.T + bias.double()) < NEAR
