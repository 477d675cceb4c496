"""Attention of a few queries a sequence: against float64, each query as far as itself, whatever is beside it."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed: `make test` installs it for these tests")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

from engine.kernels import reference  # noqa: E402
from engine.kernels.triton import attention  # noqa: E402
from engine.kernels.triton.attention_few import MOST_QUERIES, few_queries  # noqa: E402

DTYPES = [torch.float32, torch.float16, *([torch.bfloat16] if DEVICE == "cuda" else [])]
# A GPU's units round the numbers of a float32 product to 10 bits.
NEAR = {torch.float32: 2e-5 if DEVICE == "cpu" else 4e-3, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}


class Case:
    def __init__(self, contexts: list[int], heads: int, groups: int, dim: int, code: torch.dtype, page: int = 16):
        torch.manual_seed(4)
        blocks = max(-(-context // page) for context in contexts) + 1
        pages = len(contexts) * blocks
        self.contexts, self.heads, self.dim = contexts, heads, dim
        self.tables = torch.randperm(pages, device=DEVICE).view(len(contexts), blocks).to(torch.int32)
        if code.is_floating_point:
            self.view = torch.randn(pages, 2, groups, page, dim, device=DEVICE).to(code)
        else:
            self.view = torch.zeros(pages, 2, groups, page, dim + 4, dtype=torch.uint8, device=DEVICE).view(code)
            k, v = (torch.randn(pages * page, groups, dim, device=DEVICE) for _ in range(2))
            places = torch.arange(pages * page, device=DEVICE)
            reference.kv_write(k, v, self.view, places // page, places % page)

    def queries(self, counts: list[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.randn(sum(counts), self.heads, self.dim, device=DEVICE).to(dtype)

    def arguments(self, counts: list[int], which: list[int] | None = None) -> tuple[object, ...]:
        which = list(range(len(counts))) if which is None else which
        starts = torch.tensor([0, *counts], device=DEVICE).cumsum(0).to(torch.int32)
        lens = torch.tensor([self.contexts[i] for i in which], dtype=torch.int32, device=DEVICE)
        return self.view, self.tables[which], starts, lens, self.dim**-0.5


def test_rows_of_a_program_are_bounded() -> None:
    assert [few_queries(pad) for pad in (1, 4, 8, 16, 32, 64, 128)] == [MOST_QUERIES] * 3 + [4, 2, 1, 1]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("counts", "contexts", "heads", "groups", "dim", "options"),
    [
        ([2], [2], 4, 2, 64, {}),
        ([8], [8], 4, 2, 64, {}),
        ([5], [700], 8, 1, 128, {}),  # in several parts
        ([3, 1, 8, 2], [16, 33, 300, 17], 6, 2, 80, {}),
        ([4, 9, 1, 30], [400, 150, 70, 30], 6, 2, 64, {"softcap": 3.0}),
        ([3, 2], [700, 41], 16, 1, 64, {"window_tokens": 21}),
        ([3, 7], [500, 9], 4, 2, 64, {"window_tokens": 260, "sinks": True}),
        ([4, 5, 2], [300, 90, 40], 16, 1, 64, {"sinks": True}),  # five are too many for sixteen heads
        ([2, 2], [40, 150], 2, 1, 256, {}),
        ([2, 3], [40, 150], 96, 1, 64, {}),  # heads alone fill a program
    ],
    ids=lambda value: str(value) if isinstance(value, int | list) else None,
)
def test_a_few_queries_match_the_reference(dtype, counts, contexts, heads, groups, dim, options):
    case = Case(contexts, heads, groups, dim, dtype)
    q = case.queries(counts, dtype)
    options = dict(options)
    if options.pop("sinks", False):
        options["sinks"] = torch.randn(heads, device=DEVICE)
    arguments = case.arguments(counts)
    truth = reference.paged_attention(q.double(), arguments[0].double(), *arguments[1:], **options)
    got = attention.paged_attention(q, *arguments, **options)
    assert got.dtype is dtype
    error = (got.double() - truth).norm(dim=-1) / truth.norm(dim=-1).clamp_min(1e-9)
    assert float(error.max()) < NEAR[dtype]


@pytest.mark.parametrize("code", [torch.uint8, torch.int8])
@pytest.mark.parametrize("options", [{}, {"window_tokens": 40, "softcap": 4.0}], ids=["plain", "bounded"])
def test_a_few_queries_over_bytes_match_the_reference(code, options):
    counts, contexts = [3, 1, 8], [300, 33, 20]
    case = Case(contexts, 6, 2, 64, code)
    q = case.queries(counts, torch.float16)
    truth = reference.paged_attention(q.float(), *case.arguments(counts), **options).double()
    got = attention.paged_attention(q, *case.arguments(counts), **options).double()
    error = (got - truth).norm(dim=-1) / truth.norm(dim=-1)
    assert float(error.max()) < 5e-3


@pytest.mark.parametrize("code", [torch.float16, torch.uint8])
def test_rows_are_bit_by_bit_those_of_other_steps(code: torch.dtype) -> None:
    case = Case([70, 300, 33, 145], 4, 2, 64, code)
    rows = {i: case.queries([count], torch.float16) for i, count in enumerate([3, 5, 1, 8])}
    chunk = case.queries([20], torch.float16)
    first = attention.paged_attention(torch.cat(list(rows.values())), *case.arguments([3, 5, 1, 8]))
    parts = dict(zip(rows, first.split([3, 5, 1, 8]), strict=True))
    for order in ([3, 1, 0, 2], [1, 2, 3, 0]):
        got = attention.paged_attention(
            torch.cat([rows[i] for i in order]), *case.arguments([len(rows[i]) for i in order], order)
        )
        for i, part in zip(order, got.split([len(rows[i]) for i in order]), strict=True):
            assert torch.equal(part, parts[i]), (order, i)
    beside = {**rows, 0: chunk}  # a prompt's chunk among them
    got = attention.paged_attention(torch.cat(list(beside.values())), *case.arguments([20, 5, 1, 8]))
    for i, part in zip(beside, got.split([20, 5, 1, 8]), strict=True):
        assert i == 0 or torch.equal(part, parts[i]), i


def test_guesses_that_come_after_change_nothing_of_a_query() -> None:
    case = Case([120], 4, 2, 64, torch.float32)
    q = case.queries([6], torch.float32)
    whole = attention.paged_attention(q, *case.arguments([6]))
    assert torch.isfinite(whole).all()
    pages = case.tables[0, 117 // 16 :].long()
    case.view[pages, :, :, 117 % 16 :] = 1e4  # keys and values of the last three
    again = attention.paged_attention(q, *case.arguments([6]))
    assert torch.equal(again[:3], whole[:3])
    assert not torch.equal(again[3:], whole[3:])
