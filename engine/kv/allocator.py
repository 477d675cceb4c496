"""Two-level page allocator: large pages from one pool, small pages within them for each group.

A sequence's small pages cluster in the large pages it already uses, so that when it ends whole large pages come back.
Pages that hold reusable prefix content and belong to nobody are evicted a large page at a time, oldest newest-content
first, by one clock over all groups: a prefix hit needs every group, so their ages must stay together.

Order of search is pack-first (own, plain, new large, other's reserve, evict): with large pages of many small ones the
paper's order strands space. Source: Jenga (SOSP'25) §4-5. Owner: KvManager. Nothing here is thread-safe.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from engine.kv.layout import PageLayout

SequenceId = str
AgeKey = tuple[int, int]  # (last access, -depth): smaller goes first


class GroupPages:
    """Small pages of one group."""

    def __init__(self, ratio: int) -> None:
        self.ratio = ratio
        self.free_plain: set[int] = set()
        self.reserved: dict[SequenceId, list[int]] = {}  # free pages in large pages a live sequence already uses
        self.owner: dict[int, SequenceId] = {}  # large page -> the sequence it was taken for
        self.num_free: dict[int, int] = {}  # large page held by this group -> free small pages in it

    def small_pages(self, large: int) -> range:
        return range(large * self.ratio, (large + 1) * self.ratio)


class PageAllocator:
    """Free lists of every group over one pool. Page 0 of each group is the null page and never handed out."""

    def __init__(self, layout: PageLayout, num_large: int, evict: Callable[[int], bool]) -> None:
        """evict(group): give up cached content so that this group finds a page; False if there is none left."""
        self.num_large = num_large
        self.groups = [GroupPages(group.ratio) for group in layout.groups]
        self._free_large = list(range(num_large - 1, 0, -1))  # large page 0 holds the null pages
        self._evict = evict

    def free_large_pages(self) -> set[int]:
        return set(self._free_large)

    def free_small_pages(self, group_index: int) -> set[int]:
        """Free pages in large pages that this group holds."""
        group = self.groups[group_index]
        return group.free_plain.union(*group.reserved.values())

    def allocate(self, group_index: int, sequence: SequenceId) -> int | None:
        """One small page, or None when nothing is free and nothing can be evicted. Mutates: the free lists."""
        group = self.groups[group_index]
        mine = group.reserved.get(sequence)
        if mine:
            page = mine.pop()
        elif group.free_plain:
            page = group.free_plain.pop()
            self._adopt(group, page // group.ratio, sequence)
        elif self._free_large:
            return self._split(group, self._free_large.pop(), sequence)
        else:
            stolen = self._steal(group)
            if stolen is None:
                return self._allocate_by_evicting(group_index, sequence)
            page = stolen
        group.num_free[page // group.ratio] -= 1
        return page

    def free(self, group_index: int, page: int) -> None:
        """Give a small page back; a wholly free large page returns to the pool."""
        group = self.groups[group_index]
        large = page // group.ratio
        group.num_free[large] += 1
        if group.num_free[large] < group.ratio:
            owner = group.owner.get(large)
            if owner is not None and owner in group.reserved:
                group.reserved[owner].append(page)
            else:
                group.free_plain.add(page)
            return
        self._forget_large(group, large)
        self._free_large.append(large)

    def end_sequence(self, sequence: SequenceId) -> None:
        """The sequence takes no more pages: what was reserved for it is anyone's."""
        for group in self.groups:
            pages = group.reserved.pop(sequence, None)
            if pages:
                group.free_plain.update(pages)

    def _split(self, group: GroupPages, large: int, sequence: SequenceId) -> int:
        pages = list(group.small_pages(large))[::-1]
        page = pages.pop()
        group.num_free[large] = group.ratio - 1
        group.owner[large] = sequence
        group.reserved.setdefault(sequence, []).extend(pages)
        return page

    def _adopt(self, group: GroupPages, large: int, sequence: SequenceId) -> None:
        group.owner[large] = sequence
        others = [page for page in group.small_pages(large) if page in group.free_plain]
        group.free_plain.difference_update(others)
        group.reserved.setdefault(sequence, []).extend(others)

    def _steal(self, group: GroupPages) -> int | None:
        victim = max(group.reserved, key=lambda s: len(group.reserved[s]), default=None)
        if victim is None or not group.reserved[victim]:
            return None
        return group.reserved[victim].pop()

    def _allocate_by_evicting(self, group_index: int, sequence: SequenceId) -> int | None:
        return self.allocate(group_index, sequence) if self._evict(group_index) else None

    def _forget_large(self, group: GroupPages, large: int) -> None:
        pages = set(group.small_pages(large))
        group.free_plain -= pages
        owner = group.owner.pop(large)
        if owner in group.reserved:
            group.reserved[owner] = [page for page in group.reserved[owner] if page not in pages]
        del group.num_free[large]


class AgeHeap:
    """Evictable pages of (group, page) by age, smallest key first. Stale entries are skipped when they surface."""

    def __init__(self) -> None:
        self._heap: list[tuple[AgeKey, int, int]] = []
        self._current: dict[tuple[int, int], AgeKey] = {}

    def __len__(self) -> int:
        return len(self._current)

    def __contains__(self, item: tuple[int, int]) -> bool:
        return item in self._current

    def put(self, group: int, page: int, key: AgeKey) -> None:
        self._current[(group, page)] = key
        heapq.heappush(self._heap, (key, group, page))
        if len(self._heap) > 64 + 4 * len(self._current):
            self._heap = [(k, g, p) for (g, p), k in self._current.items()]
            heapq.heapify(self._heap)

    def remove(self, group: int, page: int) -> None:
        self._current.pop((group, page), None)

    def pop(self) -> tuple[int, int] | None:
        while self._heap:
            key, group, page = heapq.heappop(self._heap)
            if self._current.get((group, page)) == key:
                del self._current[(group, page)]
                return group, page
        return None
