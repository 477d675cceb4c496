"""Room in host memory for the pages of preempted requests.

A slot holds one large page, or as many small pages of one group as make one up, so slots never fragment. Copies are
queued on the device in the order of the calls, like steps: what was saved may be overwritten at once, what was loaded
may be read by the next step, and nobody waits. Host memory is pinned where the device is not the host itself.
Owner: the scheduler. Nothing here is thread-safe.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from engine.kv.layout import PageLayout
from engine.kv.manager import PageMove

if TYPE_CHECKING:
    from engine.devices import Device

MEASURED_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class SavedPages:
    """Contents of a sequence's pages for its first num_tokens tokens."""

    num_tokens: int
    slots: tuple[int, ...]
    places: tuple[dict[int, tuple[int, int]], ...]  # one a group: block -> slot, place in it

    @property
    def num_pages(self) -> int:
        return sum(map(len, self.places))


class HostPages:
    def __init__(self, layout: PageLayout, buffer: torch.Tensor, host_bytes: int, device: Device) -> None:
        """buffer: the flat one behind all pages. Blocks: while the copy rate is measured."""
        self.layout = layout
        size = layout.large_page_elements
        self.num_slots = host_bytes // (size * buffer.element_size())
        self.num_saved = 0  # small pages
        self._device = device
        self._buffer = buffer
        pinned = buffer.device.type != "cpu"
        self._host = torch.empty((self.num_slots, size), dtype=buffer.dtype, pin_memory=pinned)
        self._free = list(range(self.num_slots))[::-1]
        self.bytes_per_s = self._measure()

    def copy_s(self, pages: Sequence[int]) -> float:
        """How long so many small pages of each group take in one direction, by the rate measured."""
        sizes = (group.small_page_elements for group in self.layout.groups)
        elements = sum(n * size for n, size in zip(pages, sizes, strict=True))
        return elements * self._buffer.element_size() / self.bytes_per_s

    def fits(self, pages: Sequence[int]) -> bool:
        return self._slots_for(pages) <= len(self._free)

    def save(self, num_tokens: int, blocks: Sequence[dict[int, int]]) -> SavedPages:
        """Keep what these pages hold. blocks: one a group, block -> page. Raises: IndexError unless they fit."""
        taken: list[int] = []
        places: list[dict[int, tuple[int, int]]] = []
        for group, pages in zip(self.layout.groups, blocks, strict=True):
            place: dict[int, tuple[int, int]] = {}
            for i, (block, page) in enumerate(pages.items()):
                if i % group.ratio == 0:
                    taken.append(self._free.pop())
                place[block] = (taken[-1], i % group.ratio)
                self._at(group.index, place[block]).copy_(self._page(group.index, page), non_blocking=True)
            places.append(place)
        saved = SavedPages(num_tokens, tuple(taken), tuple(places))
        self.num_saved += saved.num_pages
        return saved

    def load(self, saved: SavedPages, moves: Sequence[PageMove]) -> None:
        """Fill pages with what was saved."""
        for move in moves:
            place = saved.places[move.group][move.block]
            self._page(move.group, move.page).copy_(self._at(move.group, place), non_blocking=True)

    def drop(self, saved: SavedPages) -> None:
        """Its slots may be used again: by copies queued later, hence after those that read them."""
        self._free.extend(saved.slots)
        self.num_saved -= saved.num_pages

    def check_integrity(self, live: Sequence[SavedPages]) -> None:
        """Raise AssertionError unless every slot is free or of one saved sequence. For tests."""
        used = [slot for saved in live for slot in saved.slots]
        assert sorted(used + self._free) == list(range(self.num_slots)), "a host slot is lost or in two places"
        assert self.num_saved == sum(saved.num_pages for saved in live), "the count of saved pages is off"

    def _slots_for(self, pages: Sequence[int]) -> int:
        return sum(-(-n // group.ratio) for n, group in zip(pages, self.layout.groups, strict=True))

    def _page(self, group: int, page: int) -> torch.Tensor:
        size = self.layout.groups[group].small_page_elements
        return self._buffer[page * size : (page + 1) * size]

    def _at(self, group: int, place: tuple[int, int]) -> torch.Tensor:
        size = self.layout.groups[group].small_page_elements
        return self._host[place[0], place[1] * size : (place[1] + 1) * size]

    def _measure(self) -> float:
        """Bytes a second of the slower direction, page by page as they will go."""
        page_bytes = self.layout.large_page_elements * self._buffer.element_size()
        pages = self._buffer[: len(self._buffer) // self.layout.large_page_elements * self.layout.large_page_elements]
        count = min(self.num_slots, len(pages) // self.layout.large_page_elements, max(1, MEASURED_BYTES // page_bytes))
        if count == 0:
            return float("inf")  # nothing fits, so nothing is ever estimated
        rows = pages[: count * self.layout.large_page_elements].view(count, -1)
        slowest_s = 0.0
        for _ in range(2):  # the first touches the memory
            slowest_s = 0.0
            for back in (False, True):
                self._device.synchronize()
                began = time.perf_counter()
                for i in range(count):
                    source, target = (self._host[i], rows[i]) if back else (rows[i], self._host[i])
                    target.copy_(source, non_blocking=True)
                self._device.synchronize()
                slowest_s = max(slowest_s, time.perf_counter() - began)
        return count * page_bytes / max(slowest_s, 1e-9)
