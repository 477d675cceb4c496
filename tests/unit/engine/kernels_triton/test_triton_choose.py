"""Choosing tokens in one kernel against the plain torch truth, and against distributions: interpreted or on a GPU."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed: `make test` installs it for these tests")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

from engine.kernels import reference_sampling  # noqa: E402
from engine.kernels.triton import choose  # noqa: E402

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
    (0.8, 0.9, 0.02, 40, 0.7, 0.1, 0.3),
    (1e-9, 0.9, 0.0, 5, 1.0, 0.0, 0.0),
]


def settings(uniforms: torch.Tensor) -> torch.Tensor:
    rows = [(*CASES[i % len(CASES)][:4], float(u), *CASES[i % len(CASES)][4:]) for i, u in enumerate(uniforms)]
    return torch.tensor(rows, dtype=torch.float32, device=DEVICE)


@pytest.mark.parametrize("width", [40, 4096, 9001])
def test_choices_match_the_reference(width):
    torch.manual_seed(width)
    count = 3 * len(CASES)
    logits = torch.randn(count + 2, width, device=DEVICE) * 3
    rows = torch.arange(count, dtype=torch.int32, device=DEVICE) + 1
    counts = torch.randint(0, 5, (count, width), dtype=torch.int32, device=DEVICE)
    count_rows = torch.where(rows % 3 == 0, -1, rows - 1).to(torch.int32)
    asked = settings(torch.rand(count))
    truth = reference_sampling.choose_tokens(logits.clone(), rows, asked, counts, count_rows)
    got = choose.choose_tokens(logits.clone(), rows, asked, counts, count_rows)
    assert (got == truth).float().mean() > 0.97, "float32 and float64 sums may part where a number falls on a border"
    assert bool((got >= 0).all() and (got < width).all())
    untouched = choose.choose_tokens(logits, rows[:0], asked[:0], counts[:0], count_rows[:0])
    assert untouched.shape == (0,)


def test_row_is_the_same_alone_and_in_a_batch():
    torch.manual_seed(5)
    count = len(CASES)
    logits = torch.randn(count, 5000, device=DEVICE) * 2
    none = torch.full((count,), -1, dtype=torch.int32, device=DEVICE)
    empty = torch.zeros(0, 5000, dtype=torch.int32, device=DEVICE)
    rows = torch.arange(count, dtype=torch.int32, device=DEVICE)
    asked = settings(torch.rand(count))
    together = choose.choose_tokens(logits.clone(), rows, asked, empty, none).tolist()
    for at in range(count):
        alone = choose.choose_tokens(logits.clone(), rows[at : at + 1], asked[at : at + 1], empty, none[:1])
        assert alone.tolist() == [together[at]]


@pytest.mark.parametrize(("top_p", "top_k"), [(1.0, 0), (0.8, 0), (1.0, 3), (0.01, 0)])
def test_draws_follow_the_filtered_distribution(top_p, top_k):
    """Draws with evenly spread uniform numbers must fall as the probabilities do."""
    row = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, -3.0], device=DEVICE)
    count = 600 if DEVICE == "cuda" else 60  # each row is a slow program in the interpreter
    logits = row.repeat(count, 1)
    asked = torch.zeros(count, 8, device=DEVICE)
    asked[:, 0], asked[:, 1], asked[:, 3], asked[:, 5] = 1.0, top_p, top_k, 1.0
    asked[:, 4] = (torch.arange(count, device=DEVICE) + 0.5) / count
    rows = torch.arange(count, dtype=torch.int32, device=DEVICE)
    none = torch.full((count,), -1, dtype=torch.int32, device=DEVICE)
    got = choose.choose_tokens(logits, rows, asked, torch.zeros(0, 6, dtype=torch.int32, device=DEVICE), none)
    probs = torch.softmax(row, dim=0)
    kept = 6 if top_k == 0 else top_k
    if top_p < 1.0:
        kept = 3 if top_p == 0.8 else 1
    wanted = torch.where(torch.arange(6, device=DEVICE) < kept, probs, 0.0)
    seen = torch.bincount(got.long(), minlength=6) / count
    assert (seen - wanted / wanted.sum()).abs().max() < 1.5 / count
