"""Prompts of one token and of every length around a block's border, written, attended to and gone on with."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed: `make test` installs it for these tests")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

from engine.kernels.triton import attention, latent, rope_kv  # noqa: E402

PAGE = 16
LENGTHS = [1, 2, 15, 16, 17, 31, 32, 33, *([47, 48, 49, 63, 64, 65] if DEVICE == "cuda" else [49])]
HEADS, GROUPS, DIM = 4, 2, 32
MORE = 1 if DEVICE == "cpu" else 3  # tokens that each goes on for
BLOCKS = -(-(max(LENGTHS) + MORE) // PAGE)
# Of float32 pages; of bytes, whose numbers are rounded.
NEAR = {torch.float32: 3e-3 if DEVICE == "cuda" else 1e-5, torch.int8: 0.02, torch.uint8: 0.08}


def dense(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, window: int | None) -> torch.Tensor:
    """The last queries of one sequence, in float64. Shapes: q [n, H, D], k, v [L, G, D] -> [n, H, E]"""
    count, length = len(q), len(k)
    k, v = (x.double().repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    scores = torch.einsum("nhd,lhd->hnl", q.double(), k) * scale
    at = torch.arange(length - count, length, device=q.device)[:, None]
    places = torch.arange(length, device=q.device)[None]
    hidden = (places > at) if window is None else (places > at) | (places <= at - window)
    return torch.einsum("hnl,lhe->nhe", scores.masked_fill(hidden, float("-inf")).softmax(-1), v)


def places(step: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of each new token its sequence and its place; where queries start, and contexts. step 0 is the prompts'."""
    new = LENGTHS if step == 0 else [1] * len(LENGTHS)
    owners = torch.repeat_interleave(torch.arange(len(LENGTHS)), torch.tensor(new))
    at = torch.cat([torch.arange(length) if step == 0 else torch.tensor([length + step - 1]) for length in LENGTHS])
    starts = torch.tensor([0, *new]).cumsum(0).to(torch.int32)
    lens = torch.tensor(LENGTHS, dtype=torch.int32) + step
    return owners.to(DEVICE), at.to(DEVICE), starts.to(DEVICE), lens.to(DEVICE)


def tables() -> torch.Tensor:
    """Pages in any order; page 0 is nobody's."""
    order = torch.randperm(len(LENGTHS) * BLOCKS) + 1
    return order.view(len(LENGTHS), BLOCKS).to(torch.int32).to(DEVICE)


CASES = [(torch.float32, None), (torch.float32, PAGE), (torch.int8, None)]


@pytest.mark.parametrize(("code", "window"), CASES + ([(torch.uint8, PAGE)] if DEVICE == "cuda" else []))
def test_prompts_around_block_borders_and_what_follows_match_float64(code: torch.dtype, window: int | None) -> None:
    torch.manual_seed(8)
    table = tables()
    view = torch.full((len(LENGTHS) * BLOCKS + 1, 2, GROUPS, PAGE, DIM), float("nan"), device=DEVICE)
    if not code.is_floating_point:
        view = torch.zeros(*view.shape[:-1], DIM + 4, dtype=torch.uint8, device=DEVICE).view(code)
    keys = [torch.randn(length + MORE, GROUPS, DIM, device=DEVICE) for length in LENGTHS]
    values = [torch.randn(length + MORE, GROUPS, DIM, device=DEVICE) for length in LENGTHS]
    for step in range(1 + MORE):
        owners, at, starts, lens = places(step)
        k, v = (torch.stack([x[o][p] for o, p in zip(owners, at, strict=True)]) for x in (keys, values))
        rope_kv.kv_write(k, v, view, table[owners, at // PAGE].long(), at % PAGE)
        q = torch.randn(len(owners), HEADS, DIM, device=DEVICE)
        found = attention.paged_attention(q, view, table, starts, lens, DIM**-0.5, window)
        for i, (start, end) in enumerate(zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)):
            length = int(lens[i])
            truth = dense(q[start:end], keys[i][:length], values[i][:length], DIM**-0.5, window)
            error = float((found[start:end].double() - truth).norm() / truth.norm())
            assert error < NEAR[code], f"a prompt of {LENGTHS[i]}, step {step}: {error}"


def test_rows_of_latents_around_block_borders_match_float64() -> None:
    torch.manual_seed(9)
    table, heads, kept, turned = tables(), 4, 24, 8
    view = torch.full((len(LENGTHS) * BLOCKS + 1, 1, 1, PAGE, kept + turned), float("nan"), device=DEVICE)
    rows = [torch.randn(length + MORE, kept + turned, device=DEVICE) for length in LENGTHS]
    for step in range(1 + MORE):
        owners, at, starts, lens = places(step)
        new = torch.stack([rows[o][p] for o, p in zip(owners, at, strict=True)])
        latent.latent_write(new, view, table[owners, at // PAGE].long(), at % PAGE)
        q = torch.randn(len(owners), heads, kept + turned, device=DEVICE)
        found = latent.paged_latent_attention(q, view, table, starts, lens, 0.2, kept)
        for i, (start, end) in enumerate(zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)):
            mine = rows[i][: int(lens[i])].unsqueeze(1)
            truth = dense(q[start:end], mine, mine[..., :kept], 0.2, None)
            error = float((found[start:end].double() - truth).norm() / truth.norm())
            assert error < NEAR[torch.float32], f"a prompt of {LENGTHS[i]}, step {step}: {error}"
