"""Which page holds which content: full blocks by a hash chain over (salt, tokens so far), and the hits that gives."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

from engine.kv.layout import PageLayout

BlockName = bytes


def extend_names(names: list[BlockName], salt: str, tokens: Sequence[int], count: int, page_tokens: int) -> None:
    """Name the first count blocks. Mutates: names, those of the blocks before."""
    for block in range(len(names), count):
        parent = names[-1] if names else blake2b(salt.encode(), digest_size=16).digest()
        content = array("q", tokens[block * page_tokens : (block + 1) * page_tokens]).tobytes()
        names.append(blake2b(parent + content, digest_size=16).digest())


def first_block_kept(window_tokens: int | None, num_computed: int, page_tokens: int) -> int:
    """The first block that the query after num_computed tokens, and all later ones, still read."""
    if window_tokens is None:
        return 0
    return max(0, num_computed - window_tokens + 1) // page_tokens


class PrefixIndex:
    """Names of the registered pages of every group, both ways. Owner: KvManager."""

    def __init__(self, layout: PageLayout) -> None:
        self.layout = layout
        self._page: list[dict[BlockName, int]] = [{} for _ in layout.groups]
        self._name: list[dict[int, tuple[BlockName, int]]] = [{} for _ in layout.groups]  # page -> name, depth

    def page(self, group: int, name: BlockName) -> int | None:
        return self._page[group].get(name)

    def pages(self, group: int) -> set[int]:
        """Those that are registered."""
        return set(self._name[group])

    def holds(self, group: int, page: int) -> bool:
        return page in self._name[group]

    def depth(self, group: int, page: int) -> int:
        """Of a registered page: how many blocks lie before it."""
        return self._name[group][page][1]

    def register(self, group: int, page: int, name: BlockName, block: int) -> None:
        """Nothing happens if the page has a name or the name a page."""
        if page not in self._name[group] and name not in self._page[group]:
            self._page[group][name] = page
            self._name[group][page] = (name, block)

    def forget(self, group: int, page: int) -> None:
        name, _ = self._name[group].pop(page)
        del self._page[group][name]

    def hit_blocks(self, names: Sequence[BlockName]) -> int:
        """The longest prefix, in blocks, that every group can serve."""
        runs = [self._runs(group, names) for group in range(len(self.layout.groups))]
        for blocks in range(len(names), 0, -1):
            if all(self._serves(group, runs[group], blocks) for group in range(len(runs))):
                return blocks
        return 0

    def _runs(self, group: int, names: Sequence[BlockName]) -> list[int]:
        """For each block, how many blocks in a row ending there are registered."""
        runs, run = [], 0
        for name in names:
            run = run + 1 if name in self._page[group] else 0
            runs.append(run)
        return runs

    def _serves(self, group: int, runs: list[int], blocks: int) -> bool:
        size = self.layout.page_tokens
        first = first_block_kept(self.layout.groups[group].window_tokens, blocks * size, size)
        return runs[blocks - 1] >= blocks - first
