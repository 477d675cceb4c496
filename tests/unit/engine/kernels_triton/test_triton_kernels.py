"""The Triton kernels against the plain torch truth: in the interpreter on a CPU, compiled on a GPU."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed: `make test` installs it for these tests")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

from engine.kernels import reference  # noqa: E402
from engine.kernels.triton import attention, gemv, greedy, norms, rope_kv, tokens  # noqa: E402

# The interpreter's bfloat16 dot is not usable; a GPU tests it too.
DTYPES = [torch.float32, torch.float16] + ([torch.bfloat16] if DEVICE == "cuda" else [])
TOLERANCE = {torch.float32: 2e-3 if DEVICE == "cuda" else 1e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}


def close(got: torch.Tensor, truth: torch.Tensor, dtype: torch.dtype) -> None:
    assert torch.isfinite(got).all()
    error = (got.double() - truth.double()).norm() / truth.double().norm().clamp_min(1e-9)
    assert error < TOLERANCE[dtype], f"{error=}"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), [(1, 64), (5, 576), (3, 4096), (0, 64)])
def test_norms_and_silu_match_the_reference(dtype, rows, width):
    torch.manual_seed(0)
    x = torch.randn(rows, width, dtype=dtype, device=DEVICE)
    residual = torch.randn(rows, width, dtype=dtype, device=DEVICE)
    weight = torch.rand(width, device=DEVICE)

    def results(ops):
        normed = [ops.rms_norm(x, weight, 1e-5), *ops.add_rms_norm(x, residual, weight, 1e-5)]
        return [*normed, ops.silu_mul(x), ops.gelu_mul(x)]

    for got, truth in zip(results(norms), results(reference), strict=True):
        assert got.shape == truth.shape
        close(got, truth, dtype)


def test_rms_norm_takes_heads_of_a_strided_projection():
    qkv = torch.randn(6, 10, 64, device=DEVICE)
    weight = torch.rand(64, device=DEVICE)
    close(norms.rms_norm(qkv[:, 2:5], weight, 1e-6), reference.rms_norm(qkv[:, 2:5], weight, 1e-6), torch.float32)


@pytest.mark.parametrize(("dim", "rotary"), [(64, 64), (80, 32)])
def test_rope_and_kv_write_match_the_reference(dim, rotary):
    torch.manual_seed(1)
    tokens, heads, groups, page = 9, 6, 2, 4
    # Strided views, as of one projection; two tensors, since the interpreter copies each argument's storage back whole.
    q_wide = torch.randn(tokens, heads + groups, dim, device=DEVICE)
    k_wide = torch.randn(tokens, 2 * groups, dim, device=DEVICE)
    truth_q, truth_k = q_wide.clone(), k_wide.clone()
    positions = torch.randint(0, 50, (tokens,), device=DEVICE)
    cos_sin = torch.randn(50, rotary, device=DEVICE)
    reference.rope(truth_q[:, :heads], truth_k[:, :groups], positions, cos_sin)
    rope_kv.rope(q_wide[:, :heads], k_wide[:, :groups], positions, cos_sin)
    close(q_wide, truth_q, torch.float32)
    close(k_wide, truth_k, torch.float32)
    pool = torch.zeros(3, 8, 2, groups, page, dim, device=DEVICE)
    truth, got = pool[1], pool[2]
    pages, offsets = torch.arange(tokens, device=DEVICE) // page, torch.arange(tokens, device=DEVICE) % page
    k, v = k_wide[:, :groups], k_wide[:, groups:]
    reference.kv_write(k, v, truth, pages, offsets)
    rope_kv.kv_write(k, v, got, pages, offsets)
    assert torch.equal(truth, got)
    assert float(pool[0].abs().sum()) == 0.0


@pytest.mark.parametrize(
    ("tokens", "heads", "groups", "dim", "rotary", "normed"),
    [
        (5, 6, 2, 64, 64, False),
        (5, 20, 10, 80, 32, True),
        (rope_kv.MANY_TOKENS + 1, 20, 10, 64, 64, False),
        (rope_kv.MANY_TOKENS + 1, 3, 1, 80, 32, True),
        (rope_kv.MANY_TOKENS + 1, 3, 1, 80, 32, False),
    ],
)
def test_rope_kv_write_matches_the_ops_it_joins(tokens, heads, groups, dim, rotary, normed):
    torch.manual_seed(3)
    page = 4
    q, k, v = (torch.randn(tokens, n, dim, device=DEVICE) for n in (heads, groups, groups))
    truth_q, truth_k = q.clone(), k.clone()
    positions = torch.randint(0, 50, (tokens,), device=DEVICE)
    cos_sin = torch.randn(50, rotary, device=DEVICE)
    pages, offsets = torch.arange(tokens, device=DEVICE) // page, torch.arange(tokens, device=DEVICE) % page
    truth, got = (torch.zeros(20, 2, groups, page, dim, device=DEVICE) for _ in range(2))
    norms = (torch.rand(dim, device=DEVICE) + 0.5, torch.rand(dim, device=DEVICE) + 0.5, 1e-5) if normed else ()
    reference.rope_kv_write(truth_q, truth_k, v, positions, cos_sin, truth, pages, offsets, *norms)
    rope_kv.rope_kv_write(q, k, v, positions, cos_sin, got, pages, offsets, *norms)
    close(q, truth_q, torch.float32)
    close(k, truth_k, torch.float32)
    close(got, truth, torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 2, 3, 4])
@pytest.mark.parametrize(("columns", "depth"), [(10, 64), (33, 700)] + ([(8192, 4096)] if DEVICE == "cuda" else []))
def test_gemv_matches_the_reference_and_a_row_does_not_depend_on_the_others(dtype, rows, columns, depth):
    torch.manual_seed(4)
    x = torch.randn(rows, depth, device=DEVICE).to(dtype)
    weight = torch.randn(columns, depth, device=DEVICE).to(dtype)
    bias = torch.randn(columns, device=DEVICE).to(dtype)
    close(gemv.linear(x, weight, bias), reference.linear(x.double(), weight.double(), bias.double()), dtype)
    close(gemv.linear(x, weight), reference.linear(x.double(), weight.double()), dtype)


def test_pick_greedy_matches_the_reference_on_ties_and_numbers_that_are_not():
    torch.manual_seed(5)
    logits = torch.randn(9, 9001, device=DEVICE)
    logits[1, 5] = logits[1, 8000] = 9.0
    logits[2, 8999], logits[3, 1], logits[4, 4500] = float("nan"), float("inf"), float("-inf")
    logits[5] = -7.0
    logits[6, 9000] = 50.0
    got = greedy.pick_greedy(logits)
    assert got.tolist() == reference.pick_greedy(logits).tolist()
    assert got.tolist()[1:7] == [5, -1, -1, -1, 0, 9000]


@pytest.mark.parametrize("count", [1, 3, 300])
def test_tokens_come_from_the_pool_and_go_there_as_in_the_reference(count):
    torch.manual_seed(count)
    pool = torch.randint(0, 1000, (count + 9,), dtype=torch.int32, device=DEVICE)
    slots = torch.randperm(count + 9, device=DEVICE)[:count].to(torch.int32)
    known = torch.randint(-1, 3, (count,), dtype=torch.int32, device=DEVICE)
    got = tokens.newest_tokens(known, slots, pool)
    assert torch.equal(got, reference.newest_tokens(known, slots, pool))
    assert torch.equal(got == pool[slots], (known < 0) | (known == pool[slots]))
    chosen = torch.randint(0, 1000, (count,), dtype=torch.int32, device=DEVICE)
    kept, truth = pool.clone(), pool.clone()
    tokens.keep_tokens(kept, slots, chosen)
    reference.keep_tokens(truth, slots, chosen)
    assert torch.equal(kept, truth)
    assert torch.equal(kept[slots], chosen)


CASES = [
    # query lengths, context lengths
    ([1], [1]),
    ([1, 1, 1], [1, 17, 70]),
    ([1] * 5, [3, 64, 65, 129, 200]),
    ([7], [7]),
    ([5, 1, 20], [5, 33, 90]),
    ([40, 3], [40, 150]),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("queries", "contexts"), CASES)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"window_tokens": 21},
        {"softcap": 3.0},
        {"sinks": True},
        {"window_tokens": 16, "sinks": True, "softcap": 5.0},
    ],
    ids=lambda options: "-".join(options) or "plain",
)
def test_paged_attention_matches_the_reference(dtype, queries, contexts, options):
    _check_attention(dtype, queries, contexts, options, heads=6, groups=2, dim=64, page=16)


@pytest.mark.parametrize(
    ("heads", "groups", "dim", "page"),
    [(4, 4, 64, 16), (8, 1, 128, 16), (6, 2, 80, 32), (9, 3, 64, 16), (2, 1, 256, 16)],
)
@pytest.mark.parametrize("queries", [[1, 1], [9, 2]])
def test_paged_attention_takes_any_head_shape(heads, groups, dim, page, queries):
    _check_attention(torch.float32, queries, [70, 41], {}, heads, groups, dim, page)


def _check_attention(dtype, queries, contexts, options, heads, groups, dim, page):
    torch.manual_seed(2)
    blocks = [-(-c // page) for c in contexts]
    num_pages = sum(blocks) + 3
    layers, this = 3, 1  # the layer's pages are a strided part of a larger pool
    pool = torch.randn(num_pages, layers, 2, groups, page, dim, device=DEVICE).to(dtype)
    view = pool[:, this]
    order = torch.randperm(num_pages - 1) + 1
    table = torch.zeros(len(contexts), max(blocks) + 2, dtype=torch.int32)
    taken = 0
    for i, count in enumerate(blocks):
        table[i, :count] = order[taken : taken + count]
        taken += count
    q = torch.randn(sum(queries), heads, dim, device=DEVICE).to(dtype)
    starts = torch.tensor([0, *torch.tensor(queries).cumsum(0).tolist()], dtype=torch.int32, device=DEVICE)
    context_lens = torch.tensor(contexts, dtype=torch.int32, device=DEVICE)
    options = dict(options)
    if options.pop("sinks", False):
        options["sinks"] = torch.randn(heads, device=DEVICE)
    arguments = (view, table.to(DEVICE), starts, context_lens, dim**-0.5)
    truth = reference.paged_attention(q.double().float(), *arguments, **options)
    close(attention.paged_attention(q, *arguments, **options), truth, dtype)


def test_num_splits_fills_the_device_without_short_parts():
    assert attention.num_splits(8, 8192) == 32
    assert attention.num_splits(8, 256) == 2
    assert attention.num_splits(2048, 8192) == 1
    assert attention.num_splits(1, 16) == 1
