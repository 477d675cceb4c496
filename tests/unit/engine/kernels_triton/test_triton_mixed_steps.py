"""Attention of a step with decodes and chunks: a sequence's rows are, bit by bit, what they are beside any others."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed: `make test` installs it for these tests")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

from engine.kernels import reference  # noqa: E402
from engine.kernels.triton import attention  # noqa: E402

HEADS, GROUPS, DIM, PAGE = 4, 2, 64, 16
CONTEXTS = [70, 300, 33, 145]
WIDTH = 20  # blocks of a table


def pool(code: torch.dtype) -> torch.Tensor:
    pages = len(CONTEXTS) * WIDTH
    if code.is_floating_point:
        return torch.randn(pages, 2, GROUPS, PAGE, DIM, device=DEVICE).to(code)
    view = torch.zeros(pages, 2, GROUPS, PAGE, DIM + 4, dtype=torch.uint8, device=DEVICE).view(code)
    k, v = (torch.randn(pages * PAGE, GROUPS, DIM, device=DEVICE) for _ in range(2))
    places = torch.arange(pages * PAGE, device=DEVICE)
    reference.kv_write(k, v, view, places // PAGE, places % PAGE)
    return view


@pytest.mark.parametrize("window_tokens", [None, 40])
@pytest.mark.parametrize("code", [torch.float16, torch.uint8])
def test_rows_of_a_mixed_step_are_bit_by_bit_those_of_other_steps(code: torch.dtype, window_tokens: int | None) -> None:
    torch.manual_seed(6)
    view = pool(code)
    tables = torch.randperm(len(view), device=DEVICE).view(len(CONTEXTS), WIDTH).to(torch.int32)
    decode = torch.randn(len(CONTEXTS), HEADS, DIM, device=DEVICE).to(torch.float16)
    chunk = torch.randn(9, HEADS, DIM, device=DEVICE).to(torch.float16)

    def attend(q: torch.Tensor, queries: list[int], which: list[int]) -> torch.Tensor:
        starts = torch.tensor([0, *queries], device=DEVICE).cumsum(0).to(torch.int32)
        lens = torch.tensor([CONTEXTS[i] for i in which], dtype=torch.int32, device=DEVICE)
        return attention.paged_attention(q, view, tables[which], starts, lens, DIM**-0.5, window_tokens)

    decodes = attend(decode, [1] * 4, [0, 1, 2, 3])
    alone = attend(chunk, [9], [1])
    for place in (0, 1, 2, 3):  # the chunk's
        others = [i for i in range(4) if i != 1]
        order = [*others[:place], 1, *others[place:]]
        q = torch.cat([chunk if i == 1 else decode[i : i + 1] for i in order])
        mixed = attend(q, [9 if i == 1 else 1 for i in order], order)
        assert torch.equal(mixed[place : place + 9], alone)
        rows = torch.cat((mixed[:place], mixed[place + 9 :]))
        assert torch.equal(rows, decodes[others])
