"""KvManager: which pages a sequence holds, what may be reused, what is given up.

A block's content is named by a hash chain over (salt, tokens so far); a full block is registered under its name in
each group and may be shared by any later sequence with the same salt. A page nobody holds but whose content is
registered is idle: it still serves hits, and is evicted when pages run out.

Every page of every group is in exactly one of: null (page 0 of large page 0), free, active (held), idle (cached).
Owner: the scheduler. Nothing here is thread-safe, and nothing touches tensor data.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from engine.kv.allocator import AgeHeap, AgeKey, PageAllocator
from engine.kv.layout import PageLayout
from engine.kv.prefix import PrefixIndex, extend_names, first_block_kept

NULL_PAGE = 0


@dataclass(frozen=True, slots=True)
class PageMove:
    """This block's saved content is wanted in this page."""

    group: int
    block: int
    page: int


@dataclass(slots=True)
class SequencePages:
    """The pages of one sequence. Owner: KvManager; others only read `tables`."""

    id: str
    salt: str
    tables: list[list[int]]  # one a group: page ids in token order; NULL_PAGE where the window has passed
    released: list[int]  # one a group: leading blocks already given back
    hashes: list[bytes] = field(default_factory=list)  # names of the leading full blocks, as far as computed
    num_registered: int = 0  # leading blocks offered for reuse


class KvManager:
    def __init__(self, layout: PageLayout, num_large: int, *, prefix_cache: bool = True) -> None:
        self.layout = layout
        self.page_tokens = layout.page_tokens
        self.prefix_cache = prefix_cache
        self._allocator = PageAllocator(layout, num_large, self._evict)
        groups = range(len(layout.groups))
        self._refs: list[dict[int, int]] = [{} for _ in groups]
        self._index = PrefixIndex(layout)
        self._access: list[dict[int, int]] = [{} for _ in groups]
        self._active_in_large: list[dict[int, int]] = [{} for _ in groups]
        self._idle_large = AgeHeap()
        self._idle_small = [AgeHeap() for _ in groups]
        self._clock = 0
        self.idle_limit: int | None = None  # small pages that may lie idle; None: any number

    # ---------------------------------------------------------------- figures

    @property
    def num_pages(self) -> int:
        """Small pages in all, null pages left out."""
        return sum((self._allocator.num_large - 1) * group.ratio for group in self.layout.groups)

    @property
    def num_active(self) -> int:
        return sum(len(refs) for refs in self._refs)

    @property
    def clock(self) -> int:
        """Steps begun."""
        return self._clock

    @property
    def num_large(self) -> int:
        """Large pages, the null pages' left out."""
        return self._allocator.num_large - 1

    @property
    def num_large_free(self) -> int:
        """Large pages that hold nothing anybody needs now; the null pages' left out."""
        return self._allocator.num_large - 1 - sum(len(active) for active in self._active_in_large)

    @property
    def num_idle(self) -> int:
        return sum(len(heap) for heap in self._idle_small)

    def capacity_tokens(self, limit: int) -> int:
        """The longest sequence, up to limit, that fits an empty pool when it is prefilled a page at a time."""
        low, high = 0, limit
        while low < high:
            middle = (low + high + 1) // 2
            if self.layout.large_pages_for(middle) <= self._allocator.num_large - 1:
                low = middle
            else:
                high = middle - 1
        return low

    # ---------------------------------------------------------------- a sequence's life

    def open(self, sequence_id: str, salt: str) -> SequencePages:
        groups = range(len(self.layout.groups))
        return SequencePages(sequence_id, salt, [[] for _ in groups], [0 for _ in groups])

    def tick(self) -> None:
        """One engine step has begun; ages are counted in steps. Mutates: what lies idle beyond the limit goes."""
        self._clock += 1
        while self.idle_limit is not None and self.num_idle > self.idle_limit:
            self._evict(max(range(len(self._idle_small)), key=lambda group: len(self._idle_small[group])))

    def forget_idle(self) -> None:
        """Nothing that is cached may be reused. Mutates: all idle pages are free."""
        for group in range(len(self._idle_small)):
            while self._idle_small[group]:
                self._evict(group)

    def take_prefix(self, pages: SequencePages, tokens: Sequence[int]) -> int:
        """Hold the longest cached prefix and return its length in tokens; at least one token is left to compute.

        Mutates: pages must be empty before. The caller sets its computed length to the result.
        """
        if not self.prefix_cache:
            return 0
        limit = (len(tokens) - 1) // self.page_tokens
        self._name_blocks(pages, tokens, limit)
        blocks = self._index.hit_blocks(pages.hashes[:limit])
        for group in self.layout.groups:
            first = self._first_block_kept(group.window_tokens, blocks * self.page_tokens)
            table = pages.tables[group.index]
            pages.released[group.index] = first
            table.extend([NULL_PAGE] * first)
            for name in pages.hashes[first:blocks]:
                page = self._index.page(group.index, name)
                assert page is not None, "a hit without its page"
                self._hold(group.index, page)
                table.append(page)
        pages.num_registered = blocks
        return blocks * self.page_tokens

    def share(self, donor: SequencePages, pages: SequencePages, num_tokens: int) -> bool:
        """Hold the donor's pages for its first num_tokens tokens, full blocks all of them, which both have in common.

        False: the donor's window has passed some of them. Mutates: pages must be empty before.
        """
        blocks = num_tokens // self.page_tokens
        firsts = [self._first_block_kept(group.window_tokens, num_tokens) for group in self.layout.groups]
        if any(NULL_PAGE in table[first:blocks] for first, table in zip(firsts, donor.tables, strict=True)):
            return False
        for group, first in enumerate(firsts):
            pages.released[group] = first
            pages.tables[group].extend([NULL_PAGE] * first)
            for page in donor.tables[group][first:blocks]:
                self._hold(group, page)
                pages.tables[group].append(page)
        return True

    def kept_blocks(self, pages: SequencePages, num_tokens: int) -> list[dict[int, int]]:
        """One a group, block -> page: all that later tokens still read of the first num_tokens."""
        blocks = -(-num_tokens // self.page_tokens)
        found = []
        for group, table in zip(self.layout.groups, pages.tables, strict=True):
            first = self._first_block_kept(group.window_tokens, num_tokens)
            found.append({block: table[block] for block in range(first, blocks)})
        return found

    def restore(self, pages: SequencePages, num_tokens: int) -> list[PageMove] | None:
        """Pages for all of kept_blocks again; the moves say which of them must be filled. None: not enough pages.

        Full blocks that are still cached are held instead. Mutates: pages must be empty before; after None, close it.
        """
        blocks = -(-num_tokens // self.page_tokens)
        named = min(len(pages.hashes), num_tokens // self.page_tokens) if self.prefix_cache else 0
        wanted: list[tuple[int, int]] = []
        for group in self.layout.groups:
            first = self._first_block_kept(group.window_tokens, num_tokens)
            pages.released[group.index] = first
            table = pages.tables[group.index]
            table.extend([NULL_PAGE] * first)
            for block in range(first, blocks):
                cached = self._index.page(group.index, pages.hashes[block]) if block < named else None
                if cached is None:
                    wanted.append((group.index, block))
                else:
                    self._hold(group.index, cached)
                table.append(NULL_PAGE if cached is None else cached)
        moves = []
        for index, block in wanted:
            got = self._allocator.allocate(index, pages.id)
            if got is None:
                return None
            self._activate(index, got)
            pages.tables[index][block] = got
            moves.append(PageMove(index, block, got))
        return moves

    def grow(self, pages: SequencePages, num_tokens: int) -> bool:
        """Make room for the first num_tokens tokens. False: not enough pages; those got so far stay held."""
        blocks = -(-num_tokens // self.page_tokens)
        for group in range(len(self.layout.groups)):
            table = pages.tables[group]
            while len(table) < blocks:
                page = self._allocator.allocate(group, pages.id)
                if page is None:
                    return False
                self._activate(group, page)
                table.append(page)
        return True

    def computed(
        self, pages: SequencePages, tokens: Sequence[int], num_computed: int, keep_tokens: int | None = None
    ) -> None:
        """KV of the first num_computed tokens is written: offer full blocks for reuse, drop what the window passed.

        keep_tokens: keep also what continuing after so many tokens would read, for others to share
        """
        if self.prefix_cache:
            full = num_computed // self.page_tokens
            self._name_blocks(pages, tokens, full)
            for block in range(pages.num_registered, full):
                for group, table in enumerate(pages.tables):
                    if table[block] != NULL_PAGE:
                        self._index.register(group, table[block], pages.hashes[block], block)
            pages.num_registered = max(pages.num_registered, full)
        self.trim(pages, num_computed if keep_tokens is None else min(num_computed, keep_tokens))

    def trim(self, pages: SequencePages, num_tokens: int) -> bool:
        """Drop what the windows have passed after num_tokens tokens. False: there was nothing."""
        before = list(pages.released)
        for group in self.layout.groups:
            keep_from = self._first_block_kept(group.window_tokens, num_tokens)
            table = pages.tables[group.index]
            for block in range(pages.released[group.index], min(keep_from, len(table))):
                self._drop(group.index, table[block])
                table[block] = NULL_PAGE
            pages.released[group.index] = max(pages.released[group.index], min(keep_from, len(table)))
        return pages.released != before

    def close(self, pages: SequencePages) -> None:
        """Let go of every page. Registered content stays reusable until it is evicted."""
        for group, table in enumerate(pages.tables):
            for page in reversed(table):
                if page != NULL_PAGE:
                    self._drop(group, page)
            table.clear()
            pages.released[group] = 0
        pages.num_registered = 0
        self._allocator.end_sequence(pages.id)

    def _first_block_kept(self, window: int | None, num_computed: int) -> int:
        return first_block_kept(window, num_computed, self.page_tokens)

    def _name_blocks(self, pages: SequencePages, tokens: Sequence[int], count: int) -> None:
        extend_names(pages.hashes, pages.salt, tokens, count, self.page_tokens)

    # ---------------------------------------------------------------- page states

    def _hold(self, group: int, page: int) -> None:
        """idle or active -> active"""
        if page in self._refs[group]:
            self._refs[group][page] += 1
            return
        self._idle_small[group].remove(group, page)
        self._activate(group, page)

    def _activate(self, group: int, page: int) -> None:
        large = page // self.layout.groups[group].ratio
        self._idle_large.remove(group, large)
        self._refs[group][page] = 1
        self._active_in_large[group][large] = self._active_in_large[group].get(large, 0) + 1

    def _drop(self, group: int, page: int) -> None:
        """active -> active, idle or free"""
        self._refs[group][page] -= 1
        if self._refs[group][page]:
            return
        del self._refs[group][page]
        large = page // self.layout.groups[group].ratio
        self._active_in_large[group][large] -= 1
        if self._index.holds(group, page):
            self._access[group][page] = self._clock
            self._idle_small[group].put(group, page, self._age(group, page))
        else:
            self._allocator.free(group, page)
        if not self._active_in_large[group][large]:
            del self._active_in_large[group][large]
            self._offer_large(group, large)

    def _age(self, group: int, page: int) -> AgeKey:
        return self._access[group][page], -self._index.depth(group, page)

    def _offer_large(self, group: int, large: int) -> None:
        """A large page without active pages is evictable as a whole; its age is that of its newest content."""
        idle = [p for p in self._allocator.groups[group].small_pages(large) if (group, p) in self._idle_small[group]]
        if idle:
            self._idle_large.put(group, large, max(self._age(group, page) for page in idle))

    def _evict(self, group: int) -> bool:
        """Give up the oldest large page of any group, else the oldest small page of this one."""
        oldest = self._idle_large.pop()
        if oldest is not None:
            owner, large = oldest
            for page in list(self._allocator.groups[owner].small_pages(large)):
                if (owner, page) in self._idle_small[owner]:
                    self._idle_small[owner].remove(owner, page)
                    self._forget(owner, page)
            return True
        item = self._idle_small[group].pop()
        if item is None:
            return False
        self._forget(group, item[1])
        return True

    def _forget(self, group: int, page: int) -> None:
        """idle -> free"""
        self._index.forget(group, page)
        self._access[group].pop(page, None)
        self._allocator.free(group, page)

    # ---------------------------------------------------------------- self-check

    def check_integrity(self, live: Iterable[SequencePages]) -> None:
        """Raise AssertionError unless every page is in exactly one state and every count agrees. Slow: for tests."""
        held: list[dict[int, int]] = [{} for _ in self.layout.groups]
        for pages in live:
            for group, table in enumerate(pages.tables):
                for page in table:
                    if page != NULL_PAGE:
                        held[group][page] = held[group].get(page, 0) + 1
        free_large = self._allocator.free_large_pages()
        for layout_group in self.layout.groups:
            group = layout_group.index
            free = self._allocator.free_small_pages(group)
            idle = self._index.pages(group) - self._refs[group].keys()
            assert held[group] == self._refs[group], f"{group=}: holders and reference counts differ"
            assert all((group, page) in self._idle_small[group] for page in idle), f"{group=}: idle page not evictable"
            assert len(self._idle_small[group]) == len(idle), f"{group=}: evictable page is not idle"
            parts = [free, idle, set(self._refs[group])]
            union = set().union(*parts)
            assert sum(map(len, parts)) == len(union), f"{group=}: a page is in two states"
            mine = {page // layout_group.ratio for page in union}
            assert not mine & free_large, f"{group=}: a large page is both free and used"
            assert len(union) == len(mine) * layout_group.ratio, f"{group=}: a page is in no state"
            assert NULL_PAGE not in union, "the null page was handed out"
        used = [{p // g.ratio for p in self._refs[g.index]} for g in self.layout.groups]
        assert sum(map(len, used)) <= self._allocator.num_large - 1 - len(free_large), "a large page is in two groups"
