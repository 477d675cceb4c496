"""The page layout of a model: which layers share pages, how large they are, and where each layer's part lies.

One flat buffer holds every layer's cache. Layers that cache the same shape under the same rule form a group and share
one block table. A small page is one block of tokens over all layers of its group; a large page is a common multiple of
the groups' small pages, so that any group can take any large page. Layer k of a group sees an array of pages with base
k * layer_elements and stride small_page_elements: kernels need only base, stride and block table.

Source: the multi-granularity paging of Jenga (SOSP'25), §4; the padding search is ours. Sizes are elements.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import product
from math import lcm
from typing import TYPE_CHECKING

from engine.errors import UnsupportedFormat
from engine.spec.model_spec import AttentionKind, AttentionSpec, ModelSpec

if TYPE_CHECKING:
    import torch

SCALE_BYTES = 4  # of a head of a token, where numbers are of one byte
MAX_LARGE_PAGE_BYTES = 128 << 20
PAGE_TOKENS_TRIED = (16, 32, 64)
MAX_PADDING = 0.02  # of a group's small page


@dataclass(frozen=True, slots=True)
class PageGroup:
    """Layers of one kind: one block table, one page size."""

    index: int
    kind: AttentionKind
    window_tokens: int | None
    layers: tuple[int, ...]
    planes: int  # 2 for K and V, 1 for a latent cache
    num_kv_heads: int
    head_dim: int  # with the bytes of a multiplier where numbers are of one byte
    layer_elements: int  # one layer's part of a small page
    small_page_elements: int  # stride between pages, padding included
    ratio: int  # small pages in a large page


@dataclass(frozen=True, slots=True)
class PageLayout:
    page_tokens: int
    groups: tuple[PageGroup, ...]
    layer_groups: tuple[int, ...]  # layer index -> group index
    large_page_elements: int

    def num_large_pages(self, kv_bytes: int, bytes_per_element: int) -> int:
        return kv_bytes // (self.large_page_elements * bytes_per_element)

    def large_pages_for(self, tokens: int, chunk_tokens: int | None = None) -> int:
        """Large pages that one sequence of so many tokens needs at its height, when it holds nothing else.

        chunk_tokens: what is prefilled at once, all of which a window's layers hold beside the window; None: one page
        """
        need = 0
        for group in self.groups:
            kept = tokens
            if group.window_tokens is not None:
                kept = min(tokens, group.window_tokens + (chunk_tokens or self.page_tokens) + self.page_tokens)
            need += -(-_blocks(kept, self.page_tokens) // group.ratio)
        return need

    def large_pages_for_pool(self, kv_tokens: int, context_tokens: int, chunk_tokens: int) -> int:
        """Large pages for so many tokens in all: as many whole contexts as they hold, and what is left over."""
        whole, rest = divmod(kv_tokens, context_tokens)
        need = whole * self.large_pages_for(context_tokens, chunk_tokens)
        return need + (self.large_pages_for(rest, chunk_tokens) if rest else 0)

    def views(self, buffer: torch.Tensor, num_large: int) -> list[torch.Tensor]:
        """One view a layer: [pages, planes, kv_heads, page_tokens, head_dim] over the flat buffer."""
        views = []
        for layer, group_index in enumerate(self.layer_groups):
            group = self.groups[group_index]
            base = group.layers.index(layer) * group.layer_elements
            shape = (num_large * group.ratio, group.planes, group.num_kv_heads, self.page_tokens, group.head_dim)
            inner = self.page_tokens * group.head_dim
            stride = (group.small_page_elements, group.num_kv_heads * inner, inner, group.head_dim, 1)
            views.append(buffer.as_strided(shape, stride, base))
        return views


def solve_layout(spec: ModelSpec, *, bytes_per_element: int, page_tokens: int | None = None) -> PageLayout:
    """Choose the block size and padding with the smallest large page.

    One byte an element means rounded numbers, which have a multiplier for each head of each token beside them.
    Raises: UnsupportedFormat if no choice keeps a large page under 128 MiB, or a layer kind has no pages.
    """
    tried = (page_tokens,) if page_tokens else PAGE_TOKENS_TRIED
    layouts = [_layout(spec, tokens, SCALE_BYTES if bytes_per_element == 1 else 0) for tokens in tried]
    best = min(layouts, key=lambda layout: (layout.large_page_elements, layout.page_tokens))
    size = best.large_page_elements * bytes_per_element
    if size > MAX_LARGE_PAGE_BYTES:
        raise UnsupportedFormat(
            f"{spec.name}: the page sizes of its {len(best.groups)} layer kinds have no common multiple under "
            f"{MAX_LARGE_PAGE_BYTES >> 20} MiB (smallest found {size >> 20} MiB).",
            "Use a smaller KV precision.",
        )
    return best


def _layout(spec: ModelSpec, page_tokens: int, scale_bytes: int) -> PageLayout:
    kinds: dict[AttentionSpec | tuple[object, ...], list[int]] = defaultdict(list)
    for layer in spec.layers:
        kinds[_property(layer.attention)].append(layer.index)
    raw: list[tuple[AttentionSpec, tuple[int, ...], int, int, int, int]] = []
    for members in kinds.values():
        attention = spec.layers[members[0]].attention
        planes, heads, dim = _cached_shape(attention)
        if scale_bytes and (attention.kind is AttentionKind.LATENT or dim % scale_bytes or page_tokens % scale_bytes):
            raise UnsupportedFormat(
                f"{spec.name}: a cache of one byte a number needs heads of keys and values, of sizes that divide by "
                f"{scale_bytes}, and pages of such many tokens.",
                "Use a cache of 16 bits.",
            )
        dim += scale_bytes
        layer_elements = planes * heads * dim * page_tokens
        raw.append((attention, tuple(members), planes, heads, dim, layer_elements))
    sizes = [layer_elements * len(members) for _, members, _, _, _, layer_elements in raw]
    padded = _pad_to_small_lcm(sizes)
    large = lcm(*padded)
    groups = tuple(
        PageGroup(i, a.kind, a.window_tokens, members, planes, heads, dim, elements, padded[i], large // padded[i])
        for i, (a, members, planes, heads, dim, elements) in enumerate(raw)
    )
    owner = {layer: group.index for group in groups for layer in group.layers}
    return PageLayout(page_tokens, groups, tuple(owner[i] for i in range(len(spec.layers))), large)


def _property(a: AttentionSpec) -> tuple[object, ...]:
    """What a layer must keep; layers with equal answers share pages."""
    return (a.kind, a.window_tokens, *_cached_shape(a))


def _cached_shape(a: AttentionSpec) -> tuple[int, int, int]:
    """planes, heads, elements of one head"""
    if a.kind is AttentionKind.LATENT:
        return 1, 1, a.kv_elements_per_token()
    if a.kind is AttentionKind.LINEAR:
        raise UnsupportedFormat(
            "Layers with a recurrent state have no pages in this version.", "Choose a model with attention layers only."
        )
    return 2, a.num_kv_heads, a.head_dim


def _pad_to_small_lcm(sizes: list[int]) -> list[int]:
    """Pad each size by at most 2 % so that the least common multiple is as small as possible.

    With one size nothing is padded. Candidates are the size itself and the next multiples of each other size's
    large power-of-two divisors, which is where common multiples shrink.
    """
    if len(set(sizes)) == 1:
        return list(sizes)
    options: list[list[int]] = []
    for size in sizes:
        found = {size}
        step = 1
        while step <= size:
            up = -(-size // step) * step
            if up <= size * (1 + MAX_PADDING):
                found.add(up)
            step *= 2
        for other in sizes:
            up = -(-size // other) * other
            if up <= size * (1 + MAX_PADDING):
                found.add(up)
        options.append(sorted(found)[:8])
    return list(min(product(*options), key=lambda choice: (lcm(*choice), sum(choice))))


def _blocks(tokens: int, page_tokens: int) -> int:
    return -(-tokens // page_tokens)
