"""The Triton kernels of a cache of bytes against the plain torch truth: interpreted on a CPU, compiled on a GPU."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed: `make test` installs it for these tests")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

from engine.kernels import reference  # noqa: E402
from engine.kernels.scaled_cache import LARGEST, numbers_of, parts  # noqa: E402
from engine.kernels.triton import attention, rope_kv  # noqa: E402

DTYPES = [torch.float32, torch.float16] + ([torch.bfloat16] if DEVICE == "cuda" else [])
# Of float16 numbers that are multiplied; the reference multiplies float32 ones.
TOLERANCE = {torch.float32: 2e-3 if DEVICE == "cuda" else 1e-5, torch.float16: 4e-3, torch.bfloat16: 1e-2}


def cache(pages: int, groups: int, page: int, dim: int, code: torch.dtype) -> torch.Tensor:
    """One layer's view of a cache of three, full of bytes that mean nothing."""
    pool = torch.full((pages, 3, 2, groups, page, dim + 4), 0x5A, dtype=torch.uint8, device=DEVICE)
    return pool.view(code)[:, 1]


def tables_of(contexts: list[int], page: int, pages: int) -> torch.Tensor:
    blocks = [-(-context // page) for context in contexts]
    order = iter((torch.randperm(pages - 1) + 1).tolist())
    table = torch.zeros(len(contexts), max(blocks) + 2, dtype=torch.int32)
    for row, count in zip(table, blocks, strict=True):
        row[:count] = torch.tensor([next(order) for _ in range(count)])
    return table.to(DEVICE)


def filled(contexts: list[int], groups: int, dim: int, page: int, code: torch.dtype) -> tuple[torch.Tensor, ...]:
    """A cache with contexts of random numbers, of very different sizes, and the block tables."""
    pages = sum(-(-context // page) for context in contexts) + 3
    view, tables = cache(pages, groups, page, dim, code), tables_of(contexts, page, pages)
    for row, context in zip(tables, contexts, strict=True):
        places = torch.arange(context, device=DEVICE)
        k, v = (torch.randn(context, groups, dim, device=DEVICE) for _ in range(2))
        v = v * torch.logspace(-2, 2, groups, device=DEVICE)[:, None]
        reference.kv_write(k, v, view, row[places // page].long(), places % page)
    return view, tables


@pytest.mark.parametrize("code", LARGEST)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("queries", "contexts", "heads", "groups", "dim", "page", "options"),
    [
        ([1], [1], 4, 4, 64, 16, {}),
        ([1, 1, 1], [17, 300, 64], 6, 2, 64, 16, {}),
        ([1, 1], [70, 41], 8, 1, 128, 16, {"softcap": 3.0}),
        ([1, 5, 1, 20], [33, 33, 150, 90], 6, 2, 80, 32, {"window_tokens": 21}),
        ([9, 1], [40, 150], 2, 1, 256, 16, {"sinks": True}),
        ([12], [30], 4, 2, 64, 16, {"window_tokens": 16, "softcap": 5.0}),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else None,
)
def test_attention_over_bytes_matches_the_reference(code, dtype, queries, contexts, heads, groups, dim, page, options):
    torch.manual_seed(2)
    view, tables = filled(contexts, groups, dim, page, code)
    q = (torch.randn(sum(queries), heads, dim, device=DEVICE) * 3).to(dtype)
    starts = torch.tensor([0, *queries], device=DEVICE).cumsum(0).to(torch.int32)
    lens = torch.tensor(contexts, dtype=torch.int32, device=DEVICE)
    options = dict(options)
    if options.pop("sinks", False):
        options["sinks"] = torch.randn(heads, device=DEVICE)
    arguments = (view, tables, starts, lens, dim**-0.5)
    truth = reference.paged_attention(q.double().float(), *arguments, **options).double()
    got = attention.paged_attention(q, *arguments, **options)
    assert got.dtype is dtype
    # A head's values are of its group's size.
    error = (got.double() - truth).norm(dim=-1) / truth.norm(dim=-1).clamp_min(1e-9)
    assert float(error.max()) < 3 * TOLERANCE[dtype], f"{error.max()=}"


@pytest.mark.parametrize("code", LARGEST)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("tokens", "dim", "rotary", "heads", "groups"), [(5, 80, 32, 20, 10), (rope_kv.MANY_TOKENS + 1, 64, 64, 3, 1)]
)
def test_heads_are_rotated_and_written_as_the_reference_writes_them(code, dtype, tokens, dim, rotary, heads, groups):
    torch.manual_seed(3)
    page = 16
    q, k, v = (torch.randn(tokens, n, dim, device=DEVICE).to(dtype) for n in (heads, groups, groups))
    k[1], v[2, 0] = 0.0, 0.0
    truth_q, truth_k = q.clone(), k.clone()
    positions = torch.randint(0, 50, (tokens,), device=DEVICE)
    cos_sin = torch.randn(50, rotary, device=DEVICE)
    pages, offsets = torch.arange(tokens, device=DEVICE) // page + 1, torch.arange(tokens, device=DEVICE) % page
    truth, got = cache(8, groups, page, dim, code), cache(8, groups, page, dim, code)
    norms = (torch.rand(dim, device=DEVICE) + 0.5, torch.rand(dim, device=DEVICE) + 0.5, 1e-5) if rotary < dim else ()
    reference.rope_kv_write(truth_q, truth_k, v, positions, cos_sin, truth, pages, offsets, *norms)
    rope_kv.rope_kv_write(q, k, v, positions, cos_sin, got, pages, offsets, *norms)
    _alike(q, truth_q, k, truth_k, got, truth, dtype)
    truth, got = cache(8, groups, page, dim, code), cache(8, groups, page, dim, code)
    reference.kv_write(k, v, truth, pages, offsets)
    rope_kv.kv_write(k, v, got, pages, offsets)
    assert torch.equal(got, truth), "nothing is rotated, so all bytes are the same"


@pytest.mark.parametrize("code", LARGEST)
@pytest.mark.parametrize("tokens", [3, rope_kv.MANY_TOKENS + 1])
def test_given_multipliers_are_written_and_saturate_as_in_the_reference(code, tokens):
    torch.manual_seed(5)
    groups, dim, page = 2, 16, 16
    q, k, v = (torch.randn(tokens, n, dim, device=DEVICE) for n in (1, groups, groups))
    given = torch.tensor([[1e-3, 0.02], [5.0, 1e-30]], device=DEVICE)
    positions, cos_sin = torch.arange(tokens, device=DEVICE), torch.randn(tokens, 16, device=DEVICE)
    pages, offsets = torch.arange(tokens, device=DEVICE) // page + 1, torch.arange(tokens, device=DEVICE) % page
    truth, got = cache(8, groups, page, dim, code), cache(8, groups, page, dim, code)
    reference.kv_write(k, v, truth, pages, offsets, given)
    rope_kv.kv_write(k, v, got, pages, offsets, given)
    assert torch.equal(got, truth)
    codes, scales = parts(got)
    assert torch.equal(scales[pages, 1, :, offsets], given[1].expand(tokens, groups))
    assert numbers_of(codes[pages, :, :, offsets], torch.ones(tokens, 2, groups, device=DEVICE)).isfinite().all()
    truth_q, truth_k = q.clone(), k.clone()
    reference.rope_kv_write(truth_q, truth_k, v, positions, cos_sin, truth, pages, offsets, kv_scales=given)
    rope_kv.rope_kv_write(q, k, v, positions, cos_sin, got, pages, offsets, kv_scales=given)
    _alike(q, truth_q, k, truth_k, got, truth, torch.float32)


def _alike(q, truth_q, k, truth_k, got, truth, dtype):
    near = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}[dtype]
    for found, wanted in ((q, truth_q), (k, truth_k)):
        assert (found.double() - wanted.double()).norm() / wanted.double().norm() < near
    numbers, truth_numbers = (numbers_of(*parts(view)) for view in (got, truth))
    assert (got != truth).float().mean() < (0.02 if DEVICE == "cuda" else 0.001), "a rotated number may round otherwise"
    written = torch.isfinite(truth_numbers)
    assert torch.equal(written, torch.isfinite(numbers))
    difference = (numbers - truth_numbers)[written].norm() / truth_numbers[written].norm()
    assert float(difference) < 0.02


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # codes whose multiplier is NaN
@pytest.mark.parametrize("code", LARGEST)
@pytest.mark.parametrize("plane", [0, 1])
@pytest.mark.parametrize("queries", [[1, 1], [3, 1]])
def test_a_key_or_value_that_is_not_finite_is_not_hidden_by_its_code(code, plane, queries):
    tokens = sum(queries)
    view = cache(3, 1, 16, 16, code)
    kv = torch.randn(2, tokens, 1, 16, device=DEVICE)
    kv[plane, queries[0] - 1, 0, 5] = float("nan") if plane else float("inf")
    pages = torch.tensor([1] * queries[0] + [2], device=DEVICE)
    offsets = torch.tensor([*range(queries[0]), 0], device=DEVICE)
    rope_kv.kv_write(kv[0], kv[1], view, pages, offsets)
    starts = torch.tensor([0, queries[0], tokens], dtype=torch.int32, device=DEVICE)
    lens, tables = (torch.tensor(of, dtype=torch.int32, device=DEVICE) for of in (queries, [[1], [2]]))
    q = torch.randn(tokens, 1, 16, device=DEVICE)
    got = attention.paged_attention(q, view, tables, starts, lens, 0.25)
    assert not torch.isfinite(got[queries[0] - 1]).any()
    assert torch.isfinite(got[-1]).all()


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("code", LARGEST)
def test_a_rotated_key_that_is_not_finite_has_no_multiplier(code):
    q, k, v = (torch.randn(2, 1, 16, device=DEVICE) for _ in range(3))
    k[0, 0, 3] = float("nan")
    view, cos_sin = cache(2, 1, 16, 16, code), torch.rand(4, 8, device=DEVICE)
    place = torch.arange(2, device=DEVICE)
    rope_kv.rope_kv_write(q, k, v, place, cos_sin, view, torch.ones_like(place), place)
    assert torch.isnan(parts(view)[1][1, 0, 0, :2]).tolist() == [True, False]
