"""Filters on logits as far apart as float32 allows: models mask by -1e30 or less. Interpreted or on a GPU."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed: `make test` installs it for these tests")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

from engine.kernels import reference_sampling  # noqa: E402
from engine.kernels.reference_sampling import RECORD, SETTINGS_AT, Asked  # noqa: E402
from engine.kernels.triton import choose  # noqa: E402

LEAST, MOST = torch.finfo(torch.float32).min, torch.finfo(torch.float32).max
# temperature, top_p, min_p, top_k
FILTERS = [
    (1.0, 1.0, 0.0, 1),
    (0.7, 1.0, 0.0, 3),
    (1.0, 0.5, 0.0, 0),
    (2.0, 0.9, 0.0, 20),
    (1.0, 1.0, 0.05, 0),
    (1e-5, 0.9, 0.0, 2),
    (1e6, 1.0, 0.0, 1),
    (1.0, 1e-50, 0.0, 0),  # 0 in float32: the largest stays
]


def drawn(draw, logits: torch.Tensor, filters: list[tuple[float, ...]], uniforms: list[float]) -> list[int]:
    count, width = logits.shape
    words = torch.full((count, RECORD), -1, dtype=torch.int32)
    words[:, 0] = torch.arange(count)
    words[:, 3:5] = 0
    words[:, 7] = 0
    settings = [(*one, uniform, 1.0, 0.0, 0.0) for one, uniform in zip(filters, uniforms, strict=True)]
    words[:, SETTINGS_AT:] = torch.tensor(settings, dtype=torch.float32).view(torch.int32)
    picked = logits.argmax(dim=1).to(torch.int32)
    none = torch.zeros(0, width, dtype=torch.int32, device=DEVICE)
    draw(logits.clone(), picked, none, Asked(words.view(-1).to(DEVICE), count, 0, 0, -1, 0))
    return picked.tolist()


def kept(row: torch.Tensor, temperature: float, top_p: float, min_p: float, top_k: int) -> torch.Tensor:
    """Which tokens the filters leave, in float64; what ties at a border stays."""
    wide = row.double()
    probs = torch.softmax((wide - wide.max()) / temperature, dim=0)
    ordered = probs.sort(descending=True).values
    left = ordered[: top_k or None]
    left = ordered[ordered >= left[-1]]
    before = left.cumsum(0) - left
    inside = before < top_p * left.sum()
    inside[0] = True
    return (probs >= left[inside][-1]) & (probs >= min_p * ordered[0]) & (probs > 0)


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # numpy's, where the interpreter divides
@pytest.mark.parametrize("far", [-1e30, LEAST, "both ends"])
def test_filters_hold_however_far_logits_lie_apart(far):
    torch.manual_seed(3)
    width = 33 if DEVICE == "cpu" else 5000
    count = len(FILTERS)
    logits = torch.randn(count, width)
    some = torch.rand(count, width) < 0.3
    if far == "both ends":
        logits = torch.where(some, LEAST, logits)
        logits[:, 5] = logits[:, 20] = MOST
    else:
        logits = torch.where(some, far, logits)
    uniforms = torch.rand(count).tolist()
    got = drawn(choose.draw_tokens, logits.to(DEVICE), FILTERS, uniforms)
    for at, filters in enumerate(FILTERS):
        assert kept(logits[at], *filters)[got[at]], (filters, got[at])
    truth = drawn(reference_sampling.draw_tokens, logits.to(DEVICE), FILTERS, uniforms)
    parted = sum(ours != theirs for ours, theirs in zip(got, truth, strict=True))
    assert parted <= (1 if DEVICE == "cuda" else 0), "sums of another order may part where a number falls on a border"
