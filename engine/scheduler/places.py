"""What a request holds when it begins to run, and what becomes of that when it has to give way.

It begins from what is known of it already: its own pages kept in host memory, the prompt's pages of another of its
group, or cached ones. Owner: the scheduler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.kv.manager import KvManager, PageMove
from engine.scheduler.groups import PromptGroup
from engine.scheduler.pace import StepPace
from engine.scheduler.request import Request

if TYPE_CHECKING:
    from engine.kv.swap import HostPages


class Places:
    def __init__(self, kv: KvManager, host: HostPages | None) -> None:
        """host: room for preempted requests' pages; None: they are computed again."""
        self.kv = kv
        self.host = host
        self.swap_outs_total = 0
        self.swap_ins_total = 0

    def enter(self, request: Request, group: PromptGroup | None) -> list[PageMove] | None:
        """Hold what is there. The moves are for `fill`; None: not enough pages. Mutates: pages and num_computed."""
        donor = group.donor if group is not None and not request.admitted else None
        if request.saved is not None:
            request.num_computed = request.saved.num_tokens
            return self.kv.restore(request.pages, request.num_computed)
        if group is not None and donor and self.kv.share(donor.pages, request.pages, group.shared_tokens):
            request.num_computed = group.shared_tokens
        else:
            request.num_computed = self.kv.take_prefix(request.pages, request.token_ids)
        return []

    def fill(self, request: Request, moves: list[PageMove]) -> None:
        """It runs: what was saved comes back. Mutates: saved, num_written."""
        if request.saved is not None and self.host is not None:
            self.host.load(request.saved, moves)
            self.swap_ins_total += 1
            self._drop(request)
        request.num_written = request.num_computed

    def give_way(self, request: Request, pace: StepPace) -> None:
        """Give the pages back, their contents saved where there is room and that is estimated to be the cheaper."""
        if self.host is not None and request.num_computed > 0:
            blocks = self.kv.kept_blocks(request.pages, request.num_computed)
            counts = [len(pages) for pages in blocks]
            rate = pace.prefill_tok_s
            if self.host.fits(counts) and (rate is None or 2 * self.host.copy_s(counts) < request.num_computed / rate):
                request.saved = self.host.save(request.num_computed, blocks)
                self.swap_outs_total += 1
        self.leave(request)

    def leave(self, request: Request) -> None:
        """Give the pages back. Mutates: num_computed, num_written."""
        self.kv.close(request.pages)
        request.num_computed = request.num_written = 0

    def end(self, request: Request) -> None:
        """It will not run again."""
        self.leave(request)
        self._drop(request)

    def _drop(self, request: Request) -> None:
        if request.saved is not None and self.host is not None:
            self.host.drop(request.saved)
            request.saved = None
