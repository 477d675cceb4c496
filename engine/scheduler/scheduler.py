"""Continuous batching: which tokens of which requests the next step computes.

A step's token budget is shared by all running decodes and slices of prefills. Decodes are never left out; prefills
get what the decodes leave, and at least one page, so that neither starves. When pages run out the lowest-ranked
request gives its pages back and is computed again later (its registered prefix is often still cached).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from engine.errors import ContextTooLong, InvalidParameter
from engine.kv.manager import KvManager
from engine.messages import FinishReason, Knobs, Submit
from engine.scheduler.request import PENDING, Request, RequestState
from engine.speculative import propose

LONGEST_PAUSE = 64  # steps


@dataclass(frozen=True, slots=True)
class ScheduledChunk:
    """num_tokens of a request from num_computed on; the last one's logits are sampled if `samples`."""

    request: Request
    start: int
    num_tokens: int
    samples: bool
    preemptions: int  # the request's count when it was scheduled: if it has grown, these pages are no longer its own
    draft: tuple[int, ...] = ()  # guessed tokens after its one real token, to be checked

    def tokens(self) -> list[int]:
        end = self.start + self.num_tokens - len(self.draft)
        return [*self.request.token_ids[self.start : end], *self.draft]


class Scheduler:
    def __init__(self, kv: KvManager, knobs: Knobs, *, max_context_tokens: int, vocab_size: int) -> None:
        self.kv = kv
        self.knobs = knobs
        self.max_context_tokens = max_context_tokens
        self.vocab_size = vocab_size
        self.running: list[Request] = []
        self.requests: dict[str, Request] = {}
        self.preemptions_total = 0
        self._waiting: list[tuple[tuple[int, int], Request]] = []
        self._arrivals = 0

    @property
    def num_waiting(self) -> int:
        return len(self.requests) - len(self.running)

    # ---------------------------------------------------------------- requests come and go

    def add(self, submit: Submit, *, seed: int) -> Request:
        """Queue a request. Raises: ContextTooLong or InvalidParameter if it could never run."""
        prompt = submit.prompt_token_ids
        if submit.request_id in self.requests:
            raise InvalidParameter(f"A request with id {submit.request_id} is already here.", "Use a fresh id.")
        if not prompt:
            raise InvalidParameter("The prompt has no tokens.", "Send at least one token.", param="prompt")
        stranger = next((token for token in (min(prompt), max(prompt)) if not 0 <= token < self.vocab_size), None)
        if stranger is not None:
            raise InvalidParameter(
                f"Token ids must lie in 0..{self.vocab_size - 1}; the prompt has {stranger}.",
                "Tokenise with this model's own tokenizer.",
                param="prompt",
            )
        if len(prompt) >= self.max_context_tokens:
            raise ContextTooLong(
                f"The prompt has {len(prompt):,} tokens; this model's place here holds {self.max_context_tokens:,} "
                "with at least one for the answer.",
                "Shorten the prompt.",
                param="messages",
            )
        pages = self.kv.open(submit.request_id, submit.cache_salt)
        request = Request(
            submit.request_id, list(prompt), len(prompt), submit.sampling, seed, submit.priority, self._arrivals, pages
        )
        self._arrivals += 1
        self.requests[request.id] = request
        heapq.heappush(self._waiting, (request.rank, request))
        return request

    def finish(self, request: Request, reason: FinishReason) -> None:
        """The one end of a request: its pages go back, and it is known no more. Mutates: everything about it."""
        if request.state is RequestState.FINISHED:
            raise AssertionError(f"request {request.id} finished twice: {request.finish}, then {reason}")
        if request.state is RequestState.RUNNING:
            self.running.remove(request)
        self.kv.close(request.pages)
        request.state = RequestState.FINISHED
        request.finish = reason
        del self.requests[request.id]

    # ---------------------------------------------------------------- a step

    def schedule(self) -> list[ScheduledChunk]:
        """Choose the next step's chunks, with pages for every token in them. Mutates: running, waiting, pages."""
        self.kv.tick()
        self.running.sort(key=lambda request: request.rank)
        chunks: list[ScheduledChunk] = []
        spare = self.knobs.token_budget - len(self.running)  # what guesses may take
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
        budget = max(self.knobs.token_budget - sum(chunk.num_tokens for chunk in chunks), self.kv.page_tokens)
        for request in list(unscheduled):
            if budget <= 0:
                return chunks
            if request.state is not RequestState.RUNNING:
                continue  # preempted for a higher-ranked one
            chunk = self._prefill(request, budget, unscheduled)
            if chunk is None:
                return chunks  # out of pages: nothing younger may take what this one waits for
            del unscheduled[request]
            chunks.append(chunk)
            budget -= chunk.num_tokens
        self._admit(chunks, budget)
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
            self._note_guess(request, len(tokens) - 1)
        elif tokens:
            request.token_ids[end] = tokens[0]
        if chunk.preemptions == request.preemptions:
            self.kv.computed(request.pages, request.token_ids, end)

    def check_integrity(self) -> None:
        """Raise AssertionError unless pages and states agree. Slow: for tests."""
        waiting = [request for request in self.requests.values() if request.state is RequestState.WAITING]
        queued = {id(request) for _, request in self._waiting}
        assert all(id(request) in queued for request in waiting), "a waiting request is not queued"
        assert all(not any(request.pages.tables) for request in waiting), "a waiting request holds pages"
        assert len(self.running) + len(waiting) == len(self.requests), "a request is in no state"
        self.kv.check_integrity(request.pages for request in self.running)

    def _admit(self, chunks: list[ScheduledChunk], budget: int) -> None:
        while budget > 0 and len(self.running) < self.knobs.max_running:
            request = self._next_waiting()
            if request is None or request.newest_pending:
                return  # a preempted one's newest token must come to the host before it is computed again
            request.num_computed = self.kv.take_prefix(request.pages, request.token_ids)
            chunk = self._prefill(request, budget, {})
            if chunk is None:
                self.kv.close(request.pages)
                request.num_computed = 0
                return  # first in the queue stays first
            heapq.heappop(self._waiting)
            if not request.admitted:
                request.admitted = True
                request.cached_tokens = min(request.num_computed, request.num_prompt)
            request.state = RequestState.RUNNING
            self.running.append(request)
            chunks.append(chunk)
            budget -= chunk.num_tokens

    def _next_waiting(self) -> Request | None:
        while self._waiting and self._waiting[0][1].state is not RequestState.WAITING:
            heapq.heappop(self._waiting)  # aborted while it waited
        return self._waiting[0][1] if self._waiting else None

    def _decode(self, request: Request, spare: int) -> ScheduledChunk:
        """The request's one token, and guesses after it if there are any to check."""
        count = min(
            self.knobs.speculation_tokens,
            spare,
            request.sampling.max_tokens - request.num_output - 1,
            self.max_context_tokens - len(request.token_ids),
        )
        if count < 1 or request.newest_pending or not request.is_plain_greedy:
            return self._chunk(request, 1)
        if request.draft_pause:
            request.draft_pause -= 1
            return self._chunk(request, 1)
        draft = propose(request.token_ids, count)
        if not draft or not self.kv.grow(request.pages, len(request.token_ids) + len(draft)):
            return self._chunk(request, 1)
        start = request.num_computed
        return ScheduledChunk(request, start, 1 + len(draft), True, request.preemptions, tuple(draft))

    def _note_guess(self, request: Request, right: int) -> None:
        """Guesses that fail again and again are made ever more rarely."""
        request.draft_misses = 0 if right else request.draft_misses + 1
        request.draft_pause = 0 if right else min(LONGEST_PAUSE, 2**request.draft_misses)

    def _prefill(self, request: Request, budget: int, unscheduled: dict[Request, None]) -> ScheduledChunk | None:
        num_tokens = min(request.num_uncomputed, self.knobs.prefill_chunk, budget)
        while not self._make_room(request, request.num_computed + num_tokens, unscheduled):
            if num_tokens <= self.kv.page_tokens:
                return None
            # A window's layers hold the whole chunk beside the window: a smaller one may still fit.
            num_tokens = max(self.kv.page_tokens, num_tokens // 2)
        return self._chunk(request, num_tokens)

    def _make_room(self, request: Request, num_tokens: int, unscheduled: dict[Request, None]) -> bool:
        """Pages for the first num_tokens tokens, preempting lower-ranked requests that have no chunk in this step.

        False: it keeps the pages it has and waits. The best-ranked request can preempt all others, so one always runs.
        """
        while not self.kv.grow(request.pages, num_tokens):
            last = next(reversed(unscheduled), None)
            if last is None or last.rank <= request.rank:
                return False
            del unscheduled[last]
            self._preempt(last)
        return True

    def _chunk(self, request: Request, num_tokens: int) -> ScheduledChunk:
        end = request.num_computed + num_tokens
        samples = end == len(request.token_ids)
        return ScheduledChunk(request, request.num_computed, num_tokens, samples, request.preemptions)

    def _ends_by_length(self, request: Request) -> bool:
        """Its last token is sampled but not read yet: another step would be for nothing."""
        if not request.newest_pending:
            return False
        full = len(request.token_ids) >= self.max_context_tokens
        return full or request.num_output >= request.sampling.max_tokens

    def _preempt(self, request: Request) -> None:
        """running -> waiting; what was sampled so far stays, its KV is computed again."""
        self.running.remove(request)
        self.kv.close(request.pages)
        request.state = RequestState.WAITING
        request.num_computed = 0
        request.preemptions += 1
        self.preemptions_total += 1
        heapq.heappush(self._waiting, (request.rank, request))
