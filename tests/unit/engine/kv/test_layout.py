"""The page layout: groups, strides and common multiples."""

from __future__ import annotations

import pytest
import torch

from engine.errors import UnsupportedFormat
from engine.kv.layout import solve_layout
from engine.spec.model_spec import AttentionKind, AttentionSpec
from tests.fakes.engine_models import attention, spec_of


def test_plain_model_has_one_group_whose_large_page_is_its_small_page():
    layout = solve_layout(spec_of(*[attention(heads=3, dim=64)] * 30), bytes_per_element=4, page_tokens=16)
    assert len(layout.groups) == 1
    assert layout.groups[0].ratio == 1
    assert layout.large_page_elements == 2 * 3 * 64 * 16 * 30


def test_gemma_like_model_has_two_groups_and_a_common_large_page():
    window = attention(AttentionKind.SLIDING, heads=16, dim=128, window=1024)
    full = attention(heads=16, dim=128)
    layers = [full if (i + 1) % 6 == 0 else window for i in range(62)]
    layout = solve_layout(spec_of(*layers), bytes_per_element=2, page_tokens=16)
    assert sorted((len(g.layers), g.ratio) for g in layout.groups) == [(10, 26), (52, 5)]
    assert layout.large_page_elements * 2 == int(32.5 * 2**20), "32.5 MiB"


def test_views_of_all_layers_tile_the_buffer_without_overlap():
    layers = [attention(heads=2, dim=4), attention(AttentionKind.SLIDING, window=8), attention(heads=2, dim=4)]
    layout = solve_layout(spec_of(*layers), bytes_per_element=4, page_tokens=4)
    num_large = 3
    buffer = torch.zeros(num_large * layout.large_page_elements)
    for group in layout.groups:
        buffer.zero_()
        for layer in group.layers:
            layout.views(buffer, num_large)[layer].add_(1)
        used = group.layer_elements * len(group.layers) * num_large * group.ratio
        assert int(buffer.sum()) == used, "each element belongs to one layer and page"
        assert int(buffer.max()) == 1


def test_unequal_sizes_are_padded_by_two_percent_at_most():
    odd = attention(heads=1, dim=101)
    even = attention(AttentionKind.SLIDING, heads=1, dim=100, window=64)
    layout = solve_layout(spec_of(odd, even), bytes_per_element=2, page_tokens=16)
    for group in layout.groups:
        exact = group.layer_elements * len(group.layers)
        assert exact <= group.small_page_elements <= exact * 1.02
        assert layout.large_page_elements == group.ratio * group.small_page_elements
    assert layout.large_page_elements < 101 * 100 * 2 * 16


def test_windows_need_pages_for_the_window_and_the_chunk_whatever_the_length():
    layout = solve_layout(
        spec_of(attention(), attention(AttentionKind.SLIDING, window=32)), bytes_per_element=4, page_tokens=16
    )
    assert layout.large_pages_for(320) == 20 + 4  # 320 tokens; a window of 32, a page of chunk and a page of border
    assert layout.large_pages_for(320, chunk_tokens=64) == 20 + 7
    assert layout.large_pages_for(16) == 1 + 1
    assert layout.large_pages_for_pool(700, 320, 64) == 2 * 27 + (4 + 4)


def test_common_multiple_over_the_limit_is_refused_with_both_numbers():
    kinds = [attention(heads=1, dim=d) for d in (4099, 4721, 5381)]
    with pytest.raises(UnsupportedFormat, match=r"128 MiB .*found \d+ MiB"):
        solve_layout(spec_of(*kinds), bytes_per_element=4)


def test_recurrent_layers_are_refused():
    linear = AttentionSpec(AttentionKind.LINEAR, 1, 1, 4, 1.0, None)
    with pytest.raises(UnsupportedFormat, match="recurrent state"):
        solve_layout(spec_of(attention(), linear), bytes_per_element=4)
