"""Drawing tokens in the library, against the plain torch truth and against distributions, on every instruction set."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from engine.errors import WorkerError
from engine.kernels import reference_sampling
from engine.kernels.cpu import library, ops

EachIsa = Callable[[], Iterator[str]]

# temperature, top_p, min_p, top_k, (uniform,) repetition, presence, frequency
CASES = [
    (1.0, 1.0, 0.0, 0, 1.0, 0.0, 0.0),
    (0.0, 1.0, 0.0, 0, 1.0, 0.0, 0.0),
    (0.0, 1.0, 0.0, 0, 2.0, 0.5, 0.5),
    (0.5, 1.0, 0.0, 0, 1.3, 0.0, 0.0),
    (1.0, 0.7, 0.0, 0, 1.0, 0.0, 0.0),
    (1.0, 0.05, 0.0, 0, 1.0, 0.0, 0.0),
    (1.5, 0.999, 0.0, 0, 1.0, 0.2, 0.7),
    (1.0, 1.0, 0.3, 0, 1.0, 0.0, 0.0),
    (1.0, 1.0, 0.0, 1, 1.0, 0.0, 0.0),
    (1.0, 1.0, 0.0, 7, 1.0, 0.0, 0.0),
    (1.0, 1.0, 0.0, 3000, 1.0, 0.0, 0.0),
    (0.8, 0.9, 0.02, 40, 0.7, 0.1, 0.3),
    (1e-9, 0.9, 0.0, 5, 1.0, 0.0, 0.0),
    (3.0, 0.95, 0.0, 0, 1.0, 0.0, 0.0),
]


def settings(uniforms: Tensor) -> Tensor:
    rows = [(*CASES[i % len(CASES)][:4], float(u), *CASES[i % len(CASES)][4:]) for i, u in enumerate(uniforms)]
    return torch.tensor(rows, dtype=torch.float32)


@pytest.mark.parametrize("width", [1, 40, 4096, 9001])
def test_choices_match_the_reference_on_every_isa(width: int, each_isa: EachIsa) -> None:
    torch.manual_seed(width)
    count = 4 * len(CASES)
    logits = torch.randn(count + 2, width) * 3
    logits[3, ::2] = float("-inf")  # what a grammar forbids
    rows = torch.arange(count, dtype=torch.int32) + 1
    counts = torch.randint(0, 5, (count, width), dtype=torch.int32)
    count_rows = torch.where(rows % 3 == 0, -1, rows - 1).to(torch.int32)
    asked, before = settings(torch.rand(count)), logits.clone()
    truth = reference_sampling.choose_tokens(logits.clone(), rows, asked, counts, count_rows)
    results = [ops.choose_tokens(logits, rows, asked, counts, count_rows) for _ in each_isa()]
    assert all(result.equal(results[0]) for result in results)
    # Sums in another order may part where a number falls on a border.
    assert int((results[0] != truth).sum()) <= 1
    assert logits.equal(before)


def test_row_is_the_same_alone_in_a_batch_and_with_any_threads() -> None:
    count = len(CASES)
    logits, asked = torch.randn(count, 5000) * 2, settings(torch.rand(count))
    none, empty = torch.full((count,), -1, dtype=torch.int32), torch.zeros(0, 5000, dtype=torch.int32)
    rows, was = torch.arange(count, dtype=torch.int32), library.threads()
    try:
        library.set_threads(3)
        together = ops.choose_tokens(logits, rows, asked, empty, none)
        library.set_threads(1)
        alone = [ops.choose_tokens(logits, rows[i : i + 1], asked[i : i + 1], empty, none[:1]) for i in range(count)]
    finally:
        library.set_threads(was)
    assert torch.cat(alone).equal(together)


@pytest.mark.parametrize(("top_p", "top_k"), [(1.0, 0), (0.8, 0), (1.0, 3), (0.01, 0)])
def test_draws_follow_the_filtered_distribution(top_p: float, top_k: int) -> None:
    """Draws with evenly spread uniform numbers must fall as the probabilities do."""
    row, count = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, -3.0]), 2000
    asked = torch.zeros(count, 8)
    asked[:, 0], asked[:, 1], asked[:, 3], asked[:, 5] = 1.0, top_p, top_k, 1.0
    asked[:, 4] = (torch.arange(count) + 0.5) / count
    rows, none = torch.arange(count, dtype=torch.int32), torch.full((count,), -1, dtype=torch.int32)
    got = ops.choose_tokens(row.repeat(count, 1), rows, asked, torch.zeros(0, 6, dtype=torch.int32), none)
    probs = torch.softmax(row, dim=0)
    kept = 6 if top_k == 0 else top_k
    if top_p < 1.0:
        kept = 1 + int((probs.cumsum(0) < top_p).sum())
    wanted = torch.where(torch.arange(6) < kept, probs, 0.0)
    found = torch.bincount(got.long(), minlength=6) / count
    assert torch.allclose(found, wanted / wanted.sum(), atol=2 / count)


def test_ties_at_a_border_all_stay() -> None:
    row, count = torch.tensor([0.0, 1.0, 1.0, 1.0, -5.0]), 300
    asked = torch.zeros(count, 8)
    asked[:, 0], asked[:, 1], asked[:, 3], asked[:, 5] = 1.0, 1.0, 2, 1.0
    asked[:, 4] = (torch.arange(count) + 0.5) / count
    rows, none = torch.arange(count, dtype=torch.int32), torch.full((count,), -1, dtype=torch.int32)
    got = ops.choose_tokens(row.repeat(count, 1), rows, asked, torch.zeros(0, 5, dtype=torch.int32), none)
    assert torch.bincount(got.long(), minlength=5).tolist() == [0, 100, 100, 100, 0]


def test_number_at_the_end_takes_a_token_that_is_kept() -> None:
    asked = torch.tensor([[1.0, 1.0, 0.0, 2.0, 1.0, 1.0, 0.0, 0.0]])  # 1 is what rounding may make of less
    logits = torch.tensor([[3.0, 2.0, -1.0, float("-inf")]])
    first, none = torch.zeros(1, dtype=torch.int32), torch.full((1,), -1, dtype=torch.int32)
    assert ops.choose_tokens(logits, first, asked, torch.zeros(0, 4, dtype=torch.int32), none).tolist() == [1]


@pytest.mark.parametrize(("row", "table"), [(2, -1), (-1, -1), (0, 0), (0, -2)])
def test_rows_that_are_not_there_are_refused(row: int, table: int) -> None:
    asked, empty = settings(torch.rand(1)), torch.zeros(0, 8, dtype=torch.int32)
    rows, tables = torch.tensor([row], dtype=torch.int32), torch.tensor([table], dtype=torch.int32)
    with pytest.raises(WorkerError, match="out of range"):
        ops.choose_tokens(torch.randn(2, 8), rows, asked, empty, tables)


def test_row_with_nan_does_no_harm() -> None:
    asked, empty = settings(torch.rand(len(CASES))), torch.zeros(0, 300, dtype=torch.int32)
    logits = torch.randn(len(CASES), 300)
    logits[:, 5] = float("nan")
    rows, none = torch.arange(len(CASES), dtype=torch.int32), torch.full((len(CASES),), -1, dtype=torch.int32)
    got = ops.choose_tokens(logits, rows, asked, empty, none)
    assert bool((got >= 0).all() and (got < 300).all())
