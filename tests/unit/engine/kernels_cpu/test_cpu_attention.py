"""Paged attention on every instruction set, against the reference in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from engine.errors import WorkerError
from engine.kernels import reference, scaled_cache
from engine.kernels.cpu import library, ops

EachIsa = Callable[[], Iterator[str]]


@dataclass(frozen=True)
class Case:
    """Sequences of (context, new tokens) whose pages lie anywhere in a buffer that another layer shares."""

    q: Tensor
    view: Tensor
    tables: Tensor
    starts: Tensor
    contexts: Tensor
    scale: float

    def run(self, attend: Callable[..., Tensor], **options: object) -> Tensor:
        return attend(self.q, self.view, self.tables, self.starts, self.contexts, self.scale, **options)


def case(
    sequences: list[tuple[int, int]], heads: int, kv_heads: int, dim: int, kv_dtype: torch.dtype, page_tokens: int = 16
) -> Case:
    blocks = [-(-context // page_tokens) for context, _ in sequences]
    shape = (sum(blocks) + 1, 2, 2, kv_heads, page_tokens)
    if kv_dtype is torch.int8:
        pages = torch.randint(-127, 128, (*shape, dim + 4), dtype=torch.int8)
        scaled_cache.parts(pages[:, 1])[1].copy_(torch.rand(shape[0], *shape[2:]) * 0.02)
    else:
        pages = torch.randn(*shape, dim).to(kv_dtype)
    order = torch.randperm(sum(blocks)) + 1
    tables = torch.zeros(len(sequences), max(blocks), dtype=torch.int32)
    at = 0
    for row, count in enumerate(blocks):
        tables[row, :count] = order[at : at + count]
        at += count
    starts = torch.tensor([0] + [rows for _, rows in sequences]).cumsum(0).to(torch.int32)
    contexts = torch.tensor([context for context, _ in sequences], dtype=torch.int32)
    q = torch.randn(int(starts[-1]), heads, dim)
    return Case(q, pages[:, 1], tables, starts, contexts, dim**-0.5)


@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int8])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(9, 3, 64), (4, 4, 80), (8, 1, 128), (2, 2, 256), (5, 5, 16)])
def test_attention_every_isa_equals_the_reference(
    kv_dtype: torch.dtype, heads: int, kv_heads: int, dim: int, each_isa: EachIsa
) -> None:
    c = case([(1, 1), (5, 5), (31, 1), (33, 2), (130, 1), (300, 77)], heads, kv_heads, dim, kv_dtype)
    truth = c.run(reference.paged_attention)
    results = [c.run(ops.paged_attention) for _ in each_isa()]
    assert torch.allclose(results[0], truth, atol=3e-6, rtol=1e-5)
    assert all(r.equal(results[0]) for r in results)


@pytest.mark.parametrize(
    "options",
    [
        {"window_tokens": 1},
        {"window_tokens": 100},
        {"softcap": 5.0},
        {"sinks": torch.linspace(-3, 3, 6)},
        {"window_tokens": 40, "softcap": 30.0, "sinks": torch.linspace(3, -3, 6)},
    ],
)
def test_attention_window_softcap_and_sinks_equal_the_reference(options: dict[str, object], each_isa: EachIsa) -> None:
    c = case([(1, 1), (400, 200), (131, 1)], 6, 2, 64, torch.float32, page_tokens=8)
    truth = c.run(reference.paged_attention, **options)
    results = [c.run(ops.paged_attention, **options) for _ in each_isa()]
    assert torch.allclose(results[0], truth, atol=5e-6, rtol=1e-5)
    assert all(r.equal(results[0]) for r in results)


@pytest.mark.parametrize("window", [None, 150])
def test_attention_row_is_bit_identical_alone_in_chunks_and_in_company(window: int | None) -> None:
    c = case([(700, 333), (64, 64), (4095, 1)], 6, 2, 64, torch.float16)
    together = c.run(ops.paged_attention, window_tokens=window)
    for sequence, (context, rows) in enumerate([(700, 333), (64, 64), (4095, 1)]):
        first = int(c.starts[sequence])
        for begin, end in ((0, 1), (rows // 3, rows // 3 + 1), (0, rows // 2 + 1), (rows - 1, rows)):
            part = ops.paged_attention(
                c.q[first + begin : first + end],
                c.view,
                c.tables[sequence : sequence + 1],
                torch.tensor([0, end - begin], dtype=torch.int32),
                torch.tensor([context - rows + end], dtype=torch.int32),
                c.scale,
                window,
            )
            assert part.equal(together[first + begin : first + end]), (sequence, begin, end)


@pytest.mark.parametrize("given", [None, torch.tensor([[0.01, 1e-25], [0.02, 0.3]])])
def test_kv_write_int8_gives_the_bytes_of_the_plain_form(given: Tensor | None, each_isa: EachIsa) -> None:
    k, v = torch.randn(9, 2, 80) * torch.logspace(-30, 30, 9).view(9, 1, 1), torch.randn(9, 2, 80)
    k[3], v[5, 1, 7] = 0.0, float("nan")
    pages, offsets = torch.tensor([2, 2, 2, 0, 0, 1, 1, 1, 1]), torch.tensor([0, 7, 3, 1, 2, 0, 5, 6, 7])
    wanted = torch.zeros(3, 2, 2, 8, 84, dtype=torch.int8)
    reference.kv_write(k, v, wanted, pages, offsets, given)
    for _ in each_isa():
        view = torch.zeros_like(wanted)
        ops.kv_write(k, v, view, pages, offsets, given)
        codes, scales = scaled_cache.parts(view)
        codes_wanted, scales_wanted = scaled_cache.parts(wanted)
        assert scales.isnan().equal(scales_wanted.isnan())
        read = scales_wanted.isfinite()
        assert scales[read].equal(scales_wanted[read])
        assert codes[read].equal(codes_wanted[read])


@pytest.mark.parametrize("threads", [1, 3, 8])
def test_attention_thread_count_does_not_change_bits(threads: int) -> None:
    c = case([(1500, 1), (90, 40)], 6, 2, 64, torch.bfloat16)
    before, was = c.run(ops.paged_attention), library.threads()
    try:
        library.set_threads(threads)
        assert c.run(ops.paged_attention).equal(before)
    finally:
        library.set_threads(was)


@pytest.mark.parametrize("kv_dtype", [torch.float16, torch.int8])
def test_attention_of_lengths_none_one_and_4095(kv_dtype: torch.dtype, each_isa: EachIsa) -> None:
    c = case([(4095, 1), (0, 0), (1, 1), (4095, 3), (17, 0), (4095, 65)], 4, 2, 32, kv_dtype)
    truth = c.run(reference.paged_attention)
    results = [c.run(ops.paged_attention) for _ in each_isa()]
    assert torch.allclose(results[0], truth, atol=3e-6, rtol=1e-5)
    assert all(r.equal(results[0]) for r in results)


def test_attention_does_not_read_beyond_the_context(each_isa: EachIsa) -> None:
    c = case([(37, 3), (16, 1)], 4, 2, 32, torch.float32)
    clean = c.run(ops.paged_attention)
    last = int(c.tables[0, 2])
    c.view[last, :, :, 37 - 32 :] = float("nan")  # the tail of the last page has never been written
    c.view[0] = float("nan")  # the page that padding names
    for _ in each_isa():
        assert c.run(ops.paged_attention).equal(clean)


def test_attention_does_not_read_before_the_window(each_isa: EachIsa) -> None:
    c = case([(200, 2)], 4, 2, 32, torch.float32)
    clean = c.run(ops.paged_attention, window_tokens=20)
    for token in range(200 - 2 - 20 + 1):
        c.view[int(c.tables[0, token // 16]), :, :, token % 16] = float("nan")
    for _ in each_isa():
        assert c.run(ops.paged_attention, window_tokens=20).equal(clean)


def test_attention_nan_key_shows_in_its_sequence_alone(each_isa: EachIsa) -> None:
    c = case([(40, 2), (20, 1)], 4, 2, 32, torch.float32)
    clean = c.run(ops.paged_attention)
    c.view[int(c.tables[0, 0]), 0, :, 3, 5] = float("nan")
    for _ in each_isa():
        out = c.run(ops.paged_attention)
        assert torch.isnan(out[:2]).all()
        assert out[2:].equal(clean[2:])


def test_attention_large_scores_do_not_overflow(each_isa: EachIsa) -> None:
    c = case([(50, 1)], 2, 2, 32, torch.float32)
    c.view.mul_(1e4)
    truth = c.run(reference.paged_attention)
    for _ in each_isa():
        assert torch.allclose(c.run(ops.paged_attention), truth, rtol=1e-4)


@pytest.mark.parametrize("change", ["page", "context", "table"])
def test_attention_step_that_would_leave_its_pages_is_refused(change: str) -> None:
    c = case([(40, 1)], 4, 2, 32, torch.float32)
    if change == "page":
        c.tables[0, 1] = c.view.shape[0]
    elif change == "context":
        c.contexts[0] = 0
    else:
        c.contexts[0] = 49
    with pytest.raises(WorkerError):
        c.run(ops.paged_attention)


def test_attention_no_rows_gives_no_rows() -> None:
    c = case([(10, 0)], 4, 2, 32, torch.float32)
    assert c.run(ops.paged_attention).shape == (0, 4, 32)
