"""The reference ops beside other ways to compute the same, in float64 where rounding matters."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from engine.kernels import reference
from engine.quant.quant_tensor import QuantTensor

PAGE = 4


def rand(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def quantised(rows: int, columns: int, seed: int = 0) -> QuantTensor:
    """Q8_0 blocks: scale 2^-6, random quants."""
    blocks = torch.randint(-127, 128, (rows, columns // 32, 32), generator=torch.Generator().manual_seed(seed))
    scale = torch.full((rows, columns // 32, 1), 2.0**-6, dtype=torch.float16).view(torch.uint8)
    data = torch.cat((scale, blocks.to(torch.int8).view(torch.uint8)), dim=-1)
    return QuantTensor("Q8_0", data.reshape(rows, -1), (rows, columns))


@pytest.mark.parametrize("tile_elements", [1, 64 * 3, 1 << 21])
@pytest.mark.parametrize("rows", [0, 1, 5])
def test_linear_quantised_in_tiles_equals_whole_matmul(
    rows: int, tile_elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference, "TILE_ELEMENTS", tile_elements)
    weight, bias, x = quantised(10, 64), rand(10, seed=2), rand(rows, 64, seed=1)
    wanted = x.double() @ weight.dequantize().double().T + bias
    torch.testing.assert_close(reference.linear(x, weight, bias).double(), wanted, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(reference.linear(x, weight).double(), wanted - bias, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_linear_plain_weight_of_any_type_gives_x_dtype(
    stored: torch.dtype, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference, "TILE_ELEMENTS", 100)
    weight, x = rand(9, 64).to(stored), rand(3, 64, seed=1).to(dtype)
    found = reference.linear(x, weight, None)
    assert found.dtype == dtype
    tolerance = 1e-4 if dtype == torch.float32 else 0.25
    torch.testing.assert_close(found.double(), x.double() @ weight.double().T, atol=tolerance, rtol=tolerance)


def test_embedding_gathers_quantised_and_plain_rows() -> None:
    ids = torch.tensor([3, 0, 3])
    table = quantised(5, 32)
    assert torch.equal(reference.embedding(ids, table, torch.float32), table.dequantize()[ids])
    plain = rand(5, 32, dtype=torch.bfloat16)
    assert torch.equal(reference.embedding(ids, plain, torch.float32), plain[ids].float())


def test_add_rms_norm_gives_norm_of_sum_and_the_sum() -> None:
    x, residual, weight = rand(4, 32), rand(4, 32, seed=1), rand(32, seed=2)
    normed, total = reference.add_rms_norm(x, residual, weight, 1e-5)
    wide = (x + residual).double()
    wanted = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight
    torch.testing.assert_close(normed.double(), wanted, atol=1e-5, rtol=1e-5)
    assert torch.equal(total, x + residual)
    assert torch.equal(reference.rms_norm(total, weight, 1e-5), normed)


def test_rope_rotates_pairs_half_a_head_apart_and_leaves_the_rest() -> None:
    qkv = rand(3, 4, 10)
    q, k = qkv[:, :3], qkv[:, 3:]
    before = qkv.clone()
    angles = torch.outer(torch.arange(9.0), torch.tensor([1.0, 0.1, 0.01]))
    positions = torch.tensor([8, 0, 5])
    reference.rope(q, k, positions, torch.cat((angles.cos(), angles.sin()), dim=1))
    turned = (
        torch.complex(before[..., :3], before[..., 3:6]) * torch.polar(torch.ones(3, 3), angles[positions])[:, None]
    )
    torch.testing.assert_close(qkv[..., :3], turned.real)
    torch.testing.assert_close(qkv[..., 3:6], turned.imag)
    assert torch.equal(qkv[..., 6:], before[..., 6:])


def test_rope_kv_write_rotates_q_and_stores_rotated_k_and_plain_v() -> None:
    qkv = rand(5, 6, 8)
    q, k, v = qkv[:, :2].clone(), qkv[:, 2:4].clone(), qkv[:, 4:].clone()
    angles = torch.outer(torch.arange(9.0), torch.tensor([1.0, 0.1, 0.01, 0.001]))
    table, positions = torch.cat((angles.cos(), angles.sin()), dim=1), torch.tensor([2, 3, 4, 0, 8])
    view, at = torch.full((3, 2, 2, PAGE, 8), torch.nan), torch.arange(5)
    pages, offsets = 2 - at // PAGE, at % PAGE
    reference.rope_kv_write(qkv[:, :2], qkv[:, 2:4], qkv[:, 4:], positions, table, view, pages, offsets)
    reference.rope(q, k, positions, table)
    assert torch.equal(qkv[:, :2], q)
    assert torch.equal(view[pages, 0, :, offsets], k)
    assert torch.equal(view[pages, 1, :, offsets], v)
    assert int(view.isnan().sum()) == view.numel() - 2 * 5 * 2 * 8


def test_pick_greedy_takes_the_first_largest_and_flags_rows_that_are_not_finite() -> None:
    logits = torch.tensor([[0.0, 3.0, 3.0], [torch.nan, 1.0, 2.0], [1.0, torch.inf, 0.0], [0.0, -torch.inf, 1.0]])
    assert reference.pick_greedy(logits).tolist() == [1, -1, -1, -1]


def test_silu_mul_takes_the_gate_first() -> None:
    gate, up = rand(3, 8), rand(3, 8, seed=1)
    found = reference.silu_mul(torch.cat((gate, up), dim=1))
    torch.testing.assert_close(found, gate / (1 + torch.exp(-gate)) * up)


def paged(k: Tensor, v: Tensor, extra_layers: int = 1) -> tuple[Tensor, Tensor]:
    """Put one sequence's keys [C, G, D] into pages in reverse order -> (strided view, its block table [1, blocks])."""
    context, groups, dim = k.shape
    blocks = -(-context // PAGE)
    flat = torch.full((blocks + 1, 1 + extra_layers, 2, groups, PAGE, dim), torch.nan)
    view = flat[:, extra_layers]
    table = torch.arange(blocks, 0, -1, dtype=torch.int32)
    at = torch.arange(context)
    reference.kv_write(k, v, view, table[at // PAGE].long(), at % PAGE)
    return view, table.unsqueeze(0)


def dense(q: Tensor, k: Tensor, v: Tensor, scale: float, **options: float | Tensor | None) -> Tensor:
    """Attention of the last t positions, one query and head at a time, in float64."""
    count, heads, dim = q.shape
    context, groups, _ = k.shape
    out = torch.zeros(count, heads, dim, dtype=torch.float64)
    window, softcap, sinks = options.get("window_tokens"), options.get("softcap"), options.get("sinks")
    for row in range(count):
        position = context - count + row
        first = 0 if window is None else max(0, position - int(window) + 1)
        for head in range(heads):
            group = head // (heads // groups)
            scores = k[first : position + 1, group].double() @ q[row, head].double() * scale
            if softcap is not None:
                scores = softcap * torch.tanh(scores / softcap)
            weights = torch.exp(scores)
            total = weights.sum()
            if isinstance(sinks, Tensor):
                total = total + math.exp(float(sinks[head]))
            out[row, head] = weights @ v[first : position + 1, group].double() / total
    return out


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"window_tokens": 5},
        {"window_tokens": 1},
        {"softcap": 1.5},
        {"sinks": torch.tensor([0.5, -1.0, 2.0, 0.0])},
        {"window_tokens": 3, "softcap": 2.0, "sinks": torch.tensor([0.5, -1.0, 2.0, 0.0])},
    ],
    ids=["full", "window", "self-only", "softcap", "sinks", "all"],
)
@pytest.mark.parametrize(("context", "new"), [(1, 1), (4, 4), (5, 1), (13, 6), (17, 17)])
def test_paged_attention_equals_dense_attention(context: int, new: int, options: dict[str, Tensor | float]) -> None:
    k, v, q = rand(context, 2, 8), rand(context, 2, 8, seed=1), rand(new, 4, 8, seed=2)
    view, table = paged(k, v)
    starts, lens = torch.tensor([0, new], dtype=torch.int32), torch.tensor([context], dtype=torch.int32)
    found = reference.paged_attention(q, view, table, starts, lens, 0.4, **options)  # type: ignore[arg-type]
    torch.testing.assert_close(found.double(), dense(q, k, v, 0.4, **options), atol=1e-5, rtol=1e-5)


def test_paged_attention_cut_into_score_tiles_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    k, v, q = rand(20, 2, 8), rand(20, 2, 8, seed=1), rand(20, 4, 8, seed=2)
    view, table = paged(k, v)
    starts, lens = torch.tensor([0, 20], dtype=torch.int32), torch.tensor([20], dtype=torch.int32)
    whole = reference.paged_attention(q, view, table, starts, lens, 0.3)
    monkeypatch.setattr(reference, "SCORE_ELEMENTS", 4 * 20 * 3)
    torch.testing.assert_close(reference.paged_attention(q, view, table, starts, lens, 0.3), whole)


def test_paged_attention_keeps_sequences_apart() -> None:
    parts = []
    for s, (context, new) in enumerate(((9, 2), (3, 3), (12, 1))):
        parts.append((rand(context, 2, 8, seed=10 + s), rand(context, 2, 8, seed=20 + s), rand(new, 4, 8, seed=30 + s)))
    views = [paged(k, v) for k, v, _ in parts]
    base, tables = 0, torch.zeros(3, 3, dtype=torch.int32)
    for s, (_, table) in enumerate(views):
        tables[s, : table.shape[1]] = table[0] + base
        base += views[s][0].shape[0]
    view = torch.cat([v for v, _ in views])
    counts = [q.shape[0] for _, _, q in parts]
    starts = torch.tensor([0, *counts]).cumsum(0).to(torch.int32)
    lens = torch.tensor([k.shape[0] for k, _, _ in parts], dtype=torch.int32)
    found = reference.paged_attention(torch.cat([q for _, _, q in parts]), view, tables, starts, lens, 0.35)
    wanted = torch.cat([dense(q, k, v, 0.35) for k, v, q in parts])
    torch.testing.assert_close(found.double(), wanted, atol=1e-5, rtol=1e-5)


def test_paged_attention_window_never_reads_pages_before_it() -> None:
    k, v, q = rand(20, 2, 8), rand(20, 2, 8, seed=1), rand(1, 4, 8, seed=2)
    view, table = paged(k, v)
    table[0, :3] = 0  # let go: page 0 holds NaN
    starts, lens = torch.tensor([0, 1], dtype=torch.int32), torch.tensor([20], dtype=torch.int32)
    found = reference.paged_attention(q, view, table, starts, lens, 0.4, window_tokens=6)
    torch.testing.assert_close(found.double(), dense(q, k, v, 0.4, window_tokens=6), atol=1e-5, rtol=1e-5)
