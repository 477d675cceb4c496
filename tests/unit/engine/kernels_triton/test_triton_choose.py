"""Choosing tokens in one kernel against the plain torch truth, and against distributions: interpreted or on a GPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed: `make test` installs it for these tests")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

from engine.kernels import reference_sampling  # noqa: E402
from engine.kernels.reference_sampling import RECORD, SETTINGS_AT, Asked  # noqa: E402
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


def asking(
    rows: torch.Tensor,
    wanted: torch.Tensor,
    count_rows: torch.Tensor | None = None,
    alternatives: list[int] | None = None,
    added: dict[int, dict[int, float]] | None = None,
    masks: torch.Tensor | None = None,
) -> Asked:
    """added: by record, by token. masks: [r, vocab / 32] of the first records"""
    count = len(rows)
    told = alternatives or [-1] * count
    words = torch.full((count, RECORD), -1, dtype=torch.int32)
    words[:, 0], words[:, 2] = rows.cpu(), torch.tensor(told, dtype=torch.int32)
    words[:, 1] = -1 if count_rows is None else count_rows.cpu()
    words[:, SETTINGS_AT:] = wanted.cpu().view(torch.int32)
    lists: list[tuple[int, int, float]] = []
    for at in range(count):
        numbers = (added or {}).get(at, {})
        words[at, 3], words[at, 4], words[at, 7] = len(lists), len(numbers), 0
        lists += [(at, token, number) for token, number in numbers.items()]
        words[at, 5] = at if masks is not None and at < len(masks) else -1
    changed = (words[:, 1] >= 0) | (words[:, 4] > 0) | (words[:, 5] >= 0)
    spare = changed & (words[:, 2] >= 0)
    words[spare, 6] = torch.arange(int(spare.sum()), dtype=torch.int32)
    numbers = torch.tensor([number for *_, number in lists], dtype=torch.float32).view(torch.int32)
    parts = [words.view(-1), *(torch.tensor([one[i] for one in lists], dtype=torch.int32) for i in (0, 1)), numbers]
    parts += [] if masks is None else [masks.reshape(-1).cpu()]
    num_masks = 0 if masks is None else len(masks)
    return Asked(torch.cat(parts).to(DEVICE), count, len(lists), num_masks, max(told), int(spare.sum()))


def chosen(draw: Callable[..., object], logits: torch.Tensor, asked: Asked, counts: torch.Tensor) -> list[torch.Tensor]:
    """The tokens of the rows asked for, what is told, and the counts after it."""
    picked = logits.float().argmax(dim=1).to(torch.int32)
    counts = counts.clone()
    told = draw(logits.clone(), picked, counts, asked)
    return [picked[asked.records[:, 0].long()], told, counts]


def no_counts(width: int) -> torch.Tensor:
    return torch.zeros(0, width, dtype=torch.int32, device=DEVICE)


@pytest.mark.parametrize("width", [40, 1024, 4501])
def test_choices_match_the_reference(width):
    torch.manual_seed(width)
    count = 2 * len(CASES)
    logits = torch.randn(count + 2, width, device=DEVICE) * 3
    rows = torch.arange(count, dtype=torch.int32, device=DEVICE) + 1
    counts = torch.randint(0, 5, (count, width), dtype=torch.int32, device=DEVICE)
    count_rows = torch.where(rows % 3 == 0, -1, rows - 1).to(torch.int32)
    masks = torch.randint(-(2**31), 2**31, (5, -(-width // 32)), dtype=torch.int32)
    added = {2: {3: 2.5, width - 1: 9.0}, 7: {token: float("-inf") for token in range(0, width, 2)}, 20: {0: -100.0}}
    alternatives = [(-1, 2, 0)[at % 3] for at in range(count)]
    asked = asking(rows, settings(torch.rand(count)), count_rows, alternatives, added, masks)
    truth, told, after = chosen(reference_sampling.draw_tokens, logits, asked, counts)
    got, kernels_told, kernels_after = chosen(choose.draw_tokens, logits, asked, counts)
    same = got == truth
    assert int((~same).sum()) <= 1, "float32 and float64 sums may part where a number falls on a border"
    assert bool((got >= 0).all() and (got < width).all())
    real = (count_rows >= 0) & same
    assert torch.equal(kernels_after[count_rows[real].long()], after[count_rows[real].long()])
    assert int(kernels_after.sum() - counts.sum()) == 2 * int((count_rows >= 0).sum())
    for at in torch.arange(count)[same.cpu()].tolist():
        most = alternatives[at]
        if most >= 0:
            ours, theirs = (of[at, : 1 + most].view(torch.float32) for of in (kernels_told, told))
            torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
            assert kernels_told[at, 3 : 3 + most].tolist() == told[at, 3 : 3 + most].tolist()
    assert choose.draw_tokens(logits, got, counts, Asked(counts.view(-1)[:0], 0, 0, 0, -1, 0)) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("width", "count"), [(5, 5), (40, 20), (4097, 20), (9001, 7)])
def test_alternatives_are_the_references_with_ties_and_with_numbers_that_are_not_finite(width, count, dtype):
    """Rows of ties alone, of two values, with fewer finite numbers than alternatives, and of none like it."""
    torch.manual_seed(width)
    logits = (torch.randn(6, width, device=DEVICE) * 2).to(dtype)
    logits[0] = 1.25
    logits[1] = torch.where(torch.arange(width, device=DEVICE) % 3 == 1, 2.0, -3.0)
    logits[2, 3:] = float("-inf")
    logits[3, 2:-1] = float("-inf")
    logits[4] *= 40
    rows = torch.tensor([4, 2, 0, 3, 1, 5], dtype=torch.int32, device=DEVICE)
    greedy = torch.zeros(6, 8, device=DEVICE)
    greedy[:, 1] = greedy[:, 5] = 1.0
    greedy[3, 0], greedy[3, 4] = 1.0, 0.3
    asked = asking(rows, greedy, None, [count] * 6)
    truth, told, _ = chosen(reference_sampling.draw_tokens, logits, asked, no_counts(width))
    got, kernels_told, _ = chosen(choose.draw_tokens, logits, asked, no_counts(width))
    assert got.tolist() == truth.tolist()
    assert kernels_told[:, 1 + count :].tolist() == told[:, 1 + count :].tolist()
    ours, theirs = (of[:, : 1 + count].contiguous().view(torch.float32) for of in (kernels_told, told))
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-6)
    for at in range(6):  # each is told alone what it is told beside the others, bit by bit
        alone = chosen(
            choose.draw_tokens, logits, asking(rows[at : at + 1], greedy[at : at + 1], None, [count]), no_counts(width)
        )
        assert alone[1].tolist() == kernels_told[at : at + 1].tolist()


def test_row_that_is_not_finite_stays_marked_and_nothing_counts_for_it():
    logits = torch.randn(2, 50, device=DEVICE)
    counts = torch.zeros(2, 50, dtype=torch.int32, device=DEVICE)
    both = torch.arange(2, dtype=torch.int32, device=DEVICE)
    asked = asking(both, settings(torch.rand(2)), both, [3, 3])
    picked = torch.tensor([-1, int(logits[1].argmax())], dtype=torch.int32, device=DEVICE)
    choose.draw_tokens(logits, picked, counts, asked)
    assert picked[0] == -1
    assert counts.sum(dim=1).tolist() == [0, 2]


@pytest.mark.parametrize("block", [128, choose.BLOCK])
def test_flat_rows_are_filtered_too_and_so_are_those_of_few_columns(block, monkeypatch):
    """More logits may lie above a threshold than lanes list: then the row is gone through."""
    monkeypatch.setattr(choose, "BLOCK", block)
    torch.manual_seed(block)
    width = 2500
    logits = torch.randn(8, width, device=DEVICE) * torch.tensor([[0.05], [3.0]] * 4, device=DEVICE)
    logits[0] = (logits[0] * 20).round() / 20  # nothing but ties
    logits[6:, 30:] = float("-inf")
    rows = torch.arange(8, dtype=torch.int32, device=DEVICE)[:: 1 if block > 128 else 2]
    wanted = torch.zeros(8, 8, device=DEVICE)
    wanted[:, 0] = wanted[:, 5] = 1.0
    wanted[:, 1] = torch.tensor([0.9, 0.9, 1.0, 1.0, 0.95, 0.95, 0.9, 1.0])
    wanted[:, 3] = torch.tensor([0, 0, 2300, 2300, 2400, 600, 0, 40])
    wanted[:, 4] = torch.rand(8, device=DEVICE)
    asked = asking(rows, wanted[rows.long()])
    truth = chosen(reference_sampling.draw_tokens, logits, asked, no_counts(width))[0]
    got = chosen(choose.draw_tokens, logits, asked, no_counts(width))[0]
    assert int((got != truth).sum()) <= 1, "sums of another order may part where a number falls on a border"
    assert bool((logits[rows.long()].gather(1, got.long().unsqueeze(1)) > float("-inf")).all())


def test_row_is_the_same_alone_and_in_a_batch():
    torch.manual_seed(5)
    count = len(CASES)
    logits = torch.randn(count, 5000, device=DEVICE) * 2
    rows = torch.arange(count, dtype=torch.int32, device=DEVICE)
    wanted = settings(torch.rand(count))
    together = chosen(choose.draw_tokens, logits, asking(rows, wanted), no_counts(5000))[0].tolist()
    for at in range(0, count, 1 if DEVICE == "cuda" else 3):
        one = asking(rows[at : at + 1], wanted[at : at + 1])
        assert chosen(choose.draw_tokens, logits, one, no_counts(5000))[0].tolist() == [together[at]]


@pytest.mark.parametrize(("top_p", "top_k"), [(1.0, 0), (0.8, 0), (1.0, 3), (0.01, 0)])
def test_draws_follow_the_filtered_distribution(top_p, top_k):
    """Draws with evenly spread uniform numbers must fall as the probabilities do."""
    row = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, -3.0], device=DEVICE)
    count = 600 if DEVICE == "cuda" else 12  # each row is a slow program in the interpreter
    wanted = torch.zeros(count, 8, device=DEVICE)
    wanted[:, 0], wanted[:, 1], wanted[:, 3], wanted[:, 5] = 1.0, top_p, top_k, 1.0
    wanted[:, 4] = (torch.arange(count, device=DEVICE) + 0.5) / count
    rows = torch.arange(count, dtype=torch.int32, device=DEVICE)
    got = chosen(choose.draw_tokens, row.repeat(count, 1), asking(rows, wanted), no_counts(6))[0]
    probs = torch.softmax(row, dim=0)
    kept = 6 if top_k == 0 else top_k
    if top_p < 1.0:
        kept = 3 if top_p == 0.8 else 1
    shares = torch.where(torch.arange(6, device=DEVICE) < kept, probs, 0.0)
    seen = torch.bincount(got.long(), minlength=6) / count
    assert (seen - shares / shares.sum()).abs().max() < 1.5 / count
