"""A cache of one byte a number: what is written, what is read, and that nobody else's tokens matter."""

from __future__ import annotations

import pytest
import torch

from engine.errors import UnsupportedFormat
from engine.kernels import reference
from engine.kernels.scaled_cache import LARGEST, numbers_of, parts, rounded
from engine.kv.layout import solve_layout
from engine.spec.model_spec import AttentionKind
from tests.fakes.engine_models import attention, spec_of

HEADS, DIM, TOKENS = 3, 16, 4
ERRORS = {torch.uint8: 0.04, torch.int8: 0.012}


def cache(dtype: torch.dtype, pages: int = 5, layer: int = 1) -> torch.Tensor:
    """One layer's view of a cache of two layers, full of bytes that mean nothing."""
    layout = solve_layout(spec_of(*[attention(heads=HEADS, dim=DIM)] * 2), bytes_per_element=1, page_tokens=TOKENS)
    buffer = torch.full((pages * layout.large_page_elements,), 0x5A, dtype=torch.uint8).view(dtype)
    return layout.views(buffer, pages)[layer]


@pytest.mark.parametrize("dtype", LARGEST)
def test_written_heads_are_read_back_to_the_precision_of_their_codes(dtype: torch.dtype) -> None:
    view = cache(dtype)
    k, v = torch.randn(6, HEADS, DIM) * 30, torch.randn(6, HEADS, DIM) * 0.01
    pages, offsets = torch.tensor([4, 4, 0, 2, 2, 2]), torch.tensor([0, 3, 1, 0, 1, 2])
    reference.kv_write(k, v, view, pages, offsets)
    codes, scales = parts(view)
    for plane, wanted in enumerate((k, v)):
        found = numbers_of(codes[pages, plane, :, offsets], scales[pages, plane, :, offsets])
        error = (found - wanted).norm(dim=-1) / wanted.norm(dim=-1)
        assert float(error.max()) < ERRORS[dtype]


@pytest.mark.parametrize("dtype", LARGEST)
def test_writing_a_token_changes_no_other_byte(dtype: torch.dtype) -> None:
    view, before = cache(dtype), cache(dtype)
    reference.kv_write(
        torch.randn(1, HEADS, DIM), torch.randn(1, HEADS, DIM), view, torch.tensor([3]), torch.tensor([2])
    )
    codes, scales = parts(view)
    old_codes, old_scales = parts(before)
    touched = torch.zeros(codes.shape[:-1], dtype=torch.bool)
    touched[3, :, :, 2] = True
    assert torch.equal(codes[~touched], old_codes[~touched])
    assert torch.equal(scales[~touched].view(torch.int32), old_scales[~touched].view(torch.int32))
    assert not torch.equal(codes[touched], old_codes[touched])


@pytest.mark.parametrize("dtype", LARGEST)
def test_attention_over_bytes_is_attention_over_the_numbers_they_stand_for(dtype: torch.dtype) -> None:
    view = cache(dtype)
    k, v, q = torch.randn(7, HEADS, DIM), torch.randn(7, HEADS, DIM), torch.randn(2, HEADS, DIM)
    table = torch.tensor([[3, 1]], dtype=torch.int32)
    places = torch.arange(7)
    reference.kv_write(k, v, view, table[0][places // TOKENS].long(), places % TOKENS)
    plain = torch.zeros(5, 2, HEADS, TOKENS, DIM)
    rounded_k, rounded_v = (numbers_of(*rounded(x, dtype)) for x in (k, v))
    reference.kv_write(rounded_k, rounded_v, plain, table[0][places // TOKENS].long(), places % TOKENS)
    shape = (table, torch.tensor([0, 2], dtype=torch.int32), torch.tensor([7], dtype=torch.int32), DIM**-0.5)
    torch.testing.assert_close(
        reference.paged_attention(q, view, *shape), reference.paged_attention(q, plain, *shape), atol=1e-6, rtol=1e-6
    )


@pytest.mark.parametrize("dtype", LARGEST)
def test_channels_of_large_magnitude_do_not_spoil_other_heads(dtype: torch.dtype) -> None:
    k = torch.randn(4, HEADS, DIM)
    k[:, 1, 5] = 400.0
    found = numbers_of(*rounded(k, dtype))
    error = (found - k).norm(dim=-1) / k.norm(dim=-1)
    assert float(error.max()) < ERRORS[dtype]


@pytest.mark.parametrize("dtype", LARGEST)
def test_given_multipliers_are_stored_and_what_lies_beyond_them_saturates(dtype: torch.dtype) -> None:
    """Every code's number is kept exactly, and no number however large becomes a code that is none."""
    codes = torch.arange(256, dtype=torch.uint8).view(dtype)
    wide = numbers_of(codes, torch.tensor(1.0))
    wide = wide[wide.isfinite() & (wide > -128)] if dtype is torch.int8 else wide[wide.isfinite()]
    padded = torch.cat((wide, torch.tensor([1e7, -1e7, 460.0, -460.0]), torch.zeros(-(len(wide) + 4) % DIM)))
    tokens = padded.view(-1, 1, DIM).expand(-1, HEADS, DIM)
    given = torch.tensor([[0.25, 3.0, 2.0**-14], [2.0**-40, 1.0, 2.0**90]])
    pages, offsets = torch.arange(len(tokens)) // TOKENS, torch.arange(len(tokens)) % TOKENS
    view = cache(dtype, pages=6)
    k, v = (tokens * given[plane].view(1, HEADS, 1) for plane in (0, 1))
    reference.kv_write(k, v, view, pages, offsets, given)
    found_codes, found_scales = parts(view)
    wanted = tokens.clamp(-LARGEST[dtype], LARGEST[dtype])
    for plane in (0, 1):
        assert torch.equal(found_scales[pages, plane, :, offsets], given[plane].expand(len(tokens), HEADS))
        found = numbers_of(found_codes[pages, plane, :, offsets], torch.ones(len(tokens), HEADS))
        assert torch.equal(found, wanted), plane


@pytest.mark.parametrize("dtype", LARGEST)
@pytest.mark.parametrize("given", [None, torch.full((2, HEADS), 0.5)])
def test_a_number_that_is_none_shows_in_the_multiplier_and_in_no_code(
    dtype: torch.dtype, given: torch.Tensor | None
) -> None:
    view = cache(dtype)
    k, v = torch.randn(2, HEADS, DIM), torch.randn(2, HEADS, DIM)
    k[0, 1, 3], v[1, 2, 0] = float("nan"), float("-inf")
    reference.kv_write(k, v, view, torch.tensor([1, 1]), torch.tensor([0, 1]), given)
    codes, scales = parts(view)
    broken = torch.zeros(2, HEADS, 2, dtype=torch.bool)
    broken[0, 1, 0], broken[1, 2, 1] = True, True
    assert torch.equal(scales[1, :, :, :2].isnan(), broken)
    assert numbers_of(codes[1, :, :, :2], torch.ones(2, HEADS, 2)).isfinite().all()


def test_zeros_stay_zeros() -> None:
    for dtype in LARGEST:
        assert not numbers_of(*rounded(torch.zeros(2, HEADS, DIM), dtype)).any()


@pytest.mark.parametrize(("heads", "page_tokens"), [(6, 16), (8, 6)])
def test_sizes_that_leave_multipliers_unaligned_are_refused(heads: int, page_tokens: int) -> None:
    spec = spec_of(attention(heads=1, dim=heads))
    with pytest.raises(UnsupportedFormat, match="one byte a number"):
        solve_layout(spec, bytes_per_element=1, page_tokens=page_tokens)


def test_windows_share_pages_with_full_layers_in_bytes_too() -> None:
    spec = spec_of(attention(heads=2, dim=16), attention(AttentionKind.SLIDING, heads=2, dim=16, window=8))
    layout = solve_layout(spec, bytes_per_element=1, page_tokens=4)
    assert all(group.head_dim == 20 for group in layout.groups)
