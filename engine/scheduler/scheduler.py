"""Continuous batching: which tokens of which requests the next step computes.

A step's token budget is shared by all running decodes and slices of prefills. Decodes are never left out; prefills
get what the decodes leave, and at least one page, so that neither starves. While streams run, a step takes no more
prompt tokens than end within Knobs.max_step_ms by the pace measured. A request begins where foresight sees room.

When pages run out the lowest-ranked request gives its pages back: to host memory where that is the cheaper by
estimate, else they are computed again later. Rank is standing first, then how many of its tenant's running requests
are older, then age. The best-ranked request stays so until it ends and may preempt all others, so one always runs.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from engine.errors import InvalidParameter
from engine.kv.manager import KvManager
from engine.messages import FinishReason, Knobs, Submit
from engine.scheduler.chunk import ScheduledChunk
from engine.scheduler.foresight import Foresight
from engine.scheduler.groups import PromptGroups
from engine.scheduler.intake import check, check_group, request_of
from engine.scheduler.pace import StepPace
from engine.scheduler.places import Places
from engine.scheduler.queue import WaitingQueue
from engine.scheduler.ranking import sort_by_rank, who_gives_way
from engine.scheduler.request import PENDING, Request, RequestState
from engine.scheduler.shares import shares_of
from engine.speculative import Speculation

if TYPE_CHECKING:
    from engine.kv.swap import HostPages


class Scheduler:
    def __init__(
        self,
        kv: KvManager,
        knobs: Knobs,
        *,
        max_context_tokens: int,
        vocab_size: int,
        host: HostPages | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """host: room for preempted requests' pages; None: they are computed again."""
        self.kv = kv
        self.places = Places(kv, host)
        self.max_context_tokens = max_context_tokens
        self.vocab_size = vocab_size
        self.running: list[Request] = []
        self.requests: dict[str, Request] = {}
        self.pace = StepPace()
        self.chunk_limit: int | None = None  # prompt tokens of one request in a step; set when memory was short
        self.speculation = Speculation()
        self.preemptions_total = 0
        self._clock = clock
        self._waiting = WaitingQueue()
        self._groups = PromptGroups()
        self._deadlines: list[tuple[float, int, Request]] = []
        self._blocked: Request | None = None  # the queue's head, if the last step had no room for it
        self._arrivals = 0
        self._turns = 0
        self._ranked = True
        self._foresight = Foresight(kv)
        self.knobs = knobs
        self.set_knobs(knobs)

    @property
    def num_waiting(self) -> int:
        return len(self.requests) - len(self.running)

    def set_knobs(self, knobs: Knobs) -> None:
        """Takes effect with the next step; those that run go on."""
        self.knobs = knobs
        self.kv.prefix_cache = knobs.prefix_cache
        self.kv.idle_limit = None if knobs.cache_share >= 1.0 else int(knobs.cache_share * self.kv.num_pages)

    # ---------------------------------------------------------------- requests come and go

    def add(self, submit: Submit, *, seed: int) -> Request:
        """Queue a request. Raises: ContextTooLong, InvalidParameter or DeadlineExceeded if it could never run."""
        if submit.request_id in self.requests:
            raise InvalidParameter(f"A request with id {submit.request_id} is already here.", "Use a fresh id.")
        check(submit, vocab_size=self.vocab_size, max_context_tokens=self.max_context_tokens)
        member = self._groups.first(submit.prompt_group)
        if member is not None:
            check_group(submit, member)
        now = self._clock()
        pages = self.kv.open(submit.request_id, submit.cache_salt)
        request = request_of(submit, seed, self._arrivals, pages, now)
        self._arrivals += 1
        self.requests[request.id] = request
        if request.deadline_mono is not None:
            heapq.heappush(self._deadlines, (request.deadline_mono, request.order, request))
        self._groups.join(request, (request.num_prompt - 1) // self.kv.page_tokens * self.kv.page_tokens)
        self._waiting.push(request, now)
        return request

    def finish(self, request: Request, reason: FinishReason) -> None:
        """The one end of a request: its pages go back, and it is known no more. Mutates: everything about it."""
        if request.state is RequestState.FINISHED:
            raise AssertionError(f"request {request.id} finished twice: {request.finish}, then {reason}")
        if request.state is RequestState.RUNNING:
            self.running.remove(request)
            self._ranked = False
        self._waiting.remove(request)
        self.places.end(request)
        request.state = RequestState.FINISHED
        request.finish = reason
        del self.requests[request.id]
        self.speculation.release(request.id)
        self._groups.leave(request)
        self._let_go(request)

    def take_expired(self) -> list[Request]:
        """Requests whose time is up; the caller ends them. Mutates: each is named once."""
        now = self._clock()
        expired = []
        while self._deadlines and self._deadlines[0][0] <= now:
            request = heapq.heappop(self._deadlines)[2]
            if request.state is not RequestState.FINISHED:
                expired.append(request)
        return expired

    # ---------------------------------------------------------------- a step

    def schedule(self) -> list[ScheduledChunk]:
        """Choose the next step's chunks, with pages for every token in them. Mutates: running, waiting, pages."""
        self.kv.tick()
        now = self._clock()
        self._make_way(now)
        self._rank_running()
        preempted = self.preemptions_total
        chunks: list[ScheduledChunk] = []
        spare = self.knobs.token_budget - len(self.running)  # what guesses may take
        self._plan_guesses()
        # By rank; whoever is left may be preempted for a better one. A dict, since most leave it at once.
        unscheduled = dict.fromkeys(self.running)
        for request in self.running[:]:
            if request.num_uncomputed != 1 or request.state is not RequestState.RUNNING:
                continue
            if self._ends_by_length(request):
                del unscheduled[request]
                continue
            if self._make_room(request, len(request.token_ids), unscheduled):
                del unscheduled[request]
                decode = self._decode(request, spare)
                spare -= len(decode.draft)
                chunks.append(decode)
        budget = self._prompt_budget(chunks)
        head = self._waiting.head(now) if len(self.running) < self.knobs.max_running else None
        given = shares_of(list(unscheduled), head, budget, self.knobs.prefill_chunk, self.kv.page_tokens)
        for request, tokens in given:
            if request.state is not RequestState.RUNNING:
                continue  # preempted for a higher-ranked one
            if tokens < 1:
                continue
            chunk = self._prefill(request, tokens, unscheduled)
            if chunk is None:
                return chunks  # out of pages: nothing younger may take what this one waits for
            del unscheduled[request]
            chunks.append(chunk)
            budget -= chunk.num_tokens
        self._admit(chunks, budget, now, scarce=self.preemptions_total > preempted)
        return chunks

    def launched(self, chunk: ScheduledChunk) -> None:
        """The chunk's work is queued: the next step may count on its KV, and on a token whose value comes later."""
        chunk.request.num_computed = chunk.start + chunk.num_tokens - len(chunk.draft)
        if chunk.samples:
            chunk.request.token_ids.append(PENDING)

    def completed(self, chunk: ScheduledChunk, tokens: Sequence[int]) -> None:
        """The chunk's KV is written; tokens are what was sampled after it, if anything. Not for finished requests.

        Of a draft, the KV of guesses that were right is kept; what was written beyond is written over.
        """
        request = chunk.request
        end = chunk.start + chunk.num_tokens
        if chunk.draft:
            request.token_ids[chunk.start + 1 :] = tokens
            request.num_computed = end = chunk.start + len(tokens)
            self.speculation.note(request, len(chunk.draft), len(tokens) - 1)
        elif tokens:
            request.token_ids[end] = tokens[0]
        self._waiting.charge(request, len(tokens))
        if chunk.preemptions == request.preemptions:
            request.num_written = end
            group = self._groups.of(request)
            keep = group.shared_tokens if group is not None and group.awaited else None
            self.kv.computed(request.pages, request.token_ids, end, keep)
            self._let_go(request)

    def check_integrity(self) -> None:
        """Raise AssertionError unless pages and states agree. Slow: for tests."""
        waiting = [request for request in self.requests.values() if request.state is RequestState.WAITING]
        queued = {id(request) for request in self._waiting}
        assert len(queued) + self._groups.num_held == len(waiting), "a waiting request is in no queue, or in two"
        assert all(request.queued == (id(request) in queued) for request in self.requests.values()), "queued in name"
        assert all(not any(request.pages.tables) for request in waiting), "a waiting request holds pages"
        assert len(self.running) + len(waiting) == len(self.requests), "a request is in no state"
        assert all(request.saved is None for request in self.running), "a running request has pages in host memory"
        self.kv.check_integrity(request.pages for request in self.running)
        if self.places.host is not None:
            self.places.host.check_integrity([r.saved for r in waiting if r.saved is not None])

    # ---------------------------------------------------------------- prompts and admission

    def _prompt_budget(self, decodes: Sequence[ScheduledChunk]) -> int:
        budget = self.knobs.token_budget - sum(chunk.num_tokens for chunk in decodes)
        if decodes and self.knobs.max_step_ms:
            within = self.pace.prompt_tokens_within(self.knobs.max_step_ms / 1000)
            budget = budget if within is None else min(budget, within)
        return max(budget, self.kv.page_tokens)

    def _admit(self, chunks: list[ScheduledChunk], budget: int, now: float, *, scarce: bool) -> None:
        """scarce: pages ran out in this step, so none go to a tenant that has somebody running."""
        while budget > 0:
            request = self._waiting.head(now)
            if request is None or request.newest_pending:
                return  # a preempted one's newest token must come to the host before it is computed again
            full = len(self.running) >= self.knobs.max_running or self._foresight.refuses_again(request, self.running)
            if full or (scarce and any(other.tenant == request.tenant for other in self.running)):
                self._blocked = request
                return
            group = self._groups.of(request)
            if group is not None and not request.admitted and group.donor is None and group.leading:
                self._waiting.withdraw(request)
                group.held.append(request)
                continue
            moves = self.places.enter(request, group)
            room = moves is not None and self._foresight.has_room(request, self.running, self.knobs)
            chunk = self._prefill(request, budget, {}) if room else None
            if chunk is None or moves is None:
                self.places.leave(request)
                self._blocked = request
                return  # first in the queue stays first
            self.places.fill(request, moves)
            self._waiting.take(request, now)
            if not request.admitted:
                request.admitted = True
                request.turn = self._turns
                self._turns += 1
                request.cached_tokens = min(request.num_computed, request.num_prompt)
                self._waiting.charge(request, request.num_uncomputed)
            request.state = RequestState.RUNNING
            self.running.append(request)
            self._ranked = False
            chunks.append(chunk)
            budget -= chunk.num_tokens

    def _let_go(self, request: Request) -> None:
        """Members of its group that waited for its prompt go on, if there is no more to wait for."""
        if request.group:
            now = self._clock()
            for member in self._groups.let_go(request):
                self._waiting.push(member, now)

    def _prefill(self, request: Request, budget: int, unscheduled: dict[Request, None]) -> ScheduledChunk | None:
        num_tokens = min(request.num_uncomputed, self._foresight.chunk_tokens(self.knobs), budget)
        if self.chunk_limit is not None:
            num_tokens = min(num_tokens, self.chunk_limit)
        while not self._make_room(request, request.num_computed + num_tokens, unscheduled):
            if num_tokens <= self.kv.page_tokens:
                return None
            # A window's layers hold the whole chunk beside the window: a smaller one may still fit.
            num_tokens = max(self.kv.page_tokens, num_tokens // 2)
        return self._chunk(request, num_tokens)

    def _chunk(self, request: Request, num_tokens: int) -> ScheduledChunk:
        end = request.num_computed + num_tokens
        samples = end == len(request.token_ids)
        return ScheduledChunk(request, request.num_computed, num_tokens, samples, request.preemptions)

    # ---------------------------------------------------------------- decodes

    def _plan_guesses(self) -> None:
        """Guesses for this step's decodes, where knobs and requests allow any."""
        decodes = [request for request in self.running if request.num_uncomputed == 1]
        wishes = []
        for request in decodes if self.knobs.speculation_tokens else ():
            count = min(
                self.knobs.speculation_tokens,
                request.sampling.max_tokens - request.num_output - 1,
                self.max_context_tokens - len(request.token_ids),
            )
            if count > 0 and request.takes_guesses and not request.newest_pending:
                wishes.append((request, count))
        self.speculation.begin(wishes, len(decodes))

    def _decode(self, request: Request, spare: int) -> ScheduledChunk:
        """The request's one token, and guesses after it if there are any to check."""
        draft = self.speculation.take(request, spare)
        if not draft or not self.kv.grow(request.pages, len(request.token_ids) + len(draft)):
            return self._chunk(request, 1)
        return ScheduledChunk(request, request.num_computed, 1 + len(draft), True, request.preemptions, draft)

    def _ends_by_length(self, request: Request) -> bool:
        """Its last token is sampled but not read yet: another step would be for nothing."""
        if not request.newest_pending:
            return False
        full = len(request.token_ids) >= self.max_context_tokens
        return full or request.num_output >= request.sampling.max_tokens

    # ---------------------------------------------------------------- rank and preemption

    def _rank_running(self) -> None:
        """Best first. Mutates: running, the rank of each."""
        if not self._ranked:
            sort_by_rank(self.running)
            self._ranked = True

    def _make_room(self, request: Request, num_tokens: int, unscheduled: dict[Request, None]) -> bool:
        """Pages for the first num_tokens tokens, preempting lower-ranked requests that have no chunk in this step.

        False: it keeps the pages it has and waits.
        """
        while not self.kv.grow(request.pages, num_tokens):
            last = next(reversed(unscheduled), None)
            if last is not None and last.rank > request.rank:
                del unscheduled[last]
                self._preempt(last)
            elif not (request.group and self.kv.trim(request.pages, request.num_written)):
                return False  # not even by giving up what others of its group might have shared
        return True

    def _make_way(self, now: float) -> None:
        """Preempt one for the queue's head if the last step had no room for it and somebody must give way to it."""
        head, self._blocked = self._blocked, None
        if head is None or head is not self._waiting.head(now):
            return
        self._rank_running()
        victim = who_gives_way(self.running, head)
        if victim is not None:
            self._preempt(victim)

    def _preempt(self, request: Request) -> None:
        """running -> waiting; what was sampled so far stays, its KV is kept in host memory or computed again."""
        self.running.remove(request)
        self._ranked = False
        self.places.give_way(request, self.pace)
        request.state = RequestState.WAITING
        request.preemptions += 1
        self.preemptions_total += 1
        self._waiting.push(request, self._clock())
        self._let_go(request)
