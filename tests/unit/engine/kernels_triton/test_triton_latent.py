"""The Triton kernels of compressed rows against the plain torch truth: interpreted on a CPU, compiled on a GPU."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed: `make test` installs it for these tests")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

from engine.kernels import reference  # noqa: E402
from engine.kernels.triton import latent  # noqa: E402

PAGE = 16


def pool(pages: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    """A layer's view of a larger page, as several layers share one."""
    return torch.randn(pages, 3, 1, 1, PAGE, width, dtype=dtype, device=DEVICE)[:, 1]


@pytest.mark.parametrize(
    ("heads", "latent_dim", "turned", "queries", "contexts"),
    [
        (4, 32, 8, [1], [1]),
        (20, 24, 8, [1, 1], [300, 17]),  # decode, the longer one in parts
        (40, 24, 8, [1, 3], [50, 17]),  # tiles of 32 heads, and of 64
        (70, 16, 16, [1], [70]),
        (16, 64, 16, [5, 1, 16], [5, 40, 33]),  # a chunk after others, a decode, a whole prompt's end
        *([(128, 512, 64, [1, 70], [900, 70])] if DEVICE == "cuda" else []),
    ],
)
def test_attention_over_rows_matches_the_reference(
    heads: int, latent_dim: int, turned: int, queries: list[int], contexts: list[int]
) -> None:
    torch.manual_seed(4)
    width = latent_dim + turned
    dtypes = [torch.float32, torch.bfloat16] if DEVICE == "cuda" else [torch.float32]
    for dtype in dtypes:
        most = max(-(-c // PAGE) for c in contexts)
        view = pool(most * len(contexts), width, dtype)
        tables = torch.randperm(len(view), device=DEVICE).view(len(contexts), most).to(torch.int32)
        starts = torch.tensor([0, *queries], device=DEVICE).cumsum(0).to(torch.int32)
        lens = torch.tensor(contexts, dtype=torch.int32, device=DEVICE)
        q = torch.randn(sum(queries), heads, width, dtype=dtype, device=DEVICE)
        arguments = (q, view, tables, starts, lens, width**-0.5, latent_dim)
        found, truth = latent.paged_latent_attention(*arguments), reference.paged_latent_attention(*arguments)
        assert found.shape == truth.shape
        error = (found.double() - truth.double()).norm() / truth.double().norm()
        assert error < (2e-2 if dtype is torch.bfloat16 else 2e-3 if DEVICE == "cuda" else 1e-5), f"{error=} {dtype=}"


def test_parts_are_used_and_empty_steps_give_nothing() -> None:
    assert latent.num_splits(2, 304) > 1
    q = torch.empty(0, 4, 40, device=DEVICE)
    none = torch.zeros(0, dtype=torch.int32, device=DEVICE)
    starts = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    found = latent.paged_latent_attention(q, pool(2, 40, q.dtype), none.view(0, 1), starts, none, 1.0, 32)
    assert found.shape == (0, 4, 32)


def test_rows_are_written_where_the_reference_writes_them() -> None:
    torch.manual_seed(5)
    rows = torch.randn(5, 100, device=DEVICE)[:, :40]
    pages = torch.tensor([3, 1, 1, 0, 2], dtype=torch.int32, device=DEVICE)
    offsets = torch.tensor([0, 15, 14, 7, 3], dtype=torch.int32, device=DEVICE)
    found = pool(4, 40, torch.float32).clone()
    truth = found.clone()
    latent.latent_write(rows, found, pages, offsets)
    reference.latent_write(rows, truth, pages, offsets)
    assert torch.equal(found, truth)
