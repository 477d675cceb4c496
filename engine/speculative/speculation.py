"""Speculation: which requests get how many guesses in a step, and whether any.

Lossless: a guess counts only where it is what the request's next token would have been anyway, drawn from the same
distribution with the same number, so that text does not depend on guesses. (Drawing from p and keeping the draw where
it equals a fixed guess accepts that guess with probability p, and else draws from the rest: rejection sampling.)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.speculative.drafter import Drafter, Wish
from engine.speculative.forced import ForcedDrafter
from engine.speculative.lookup import LookupDrafter
from engine.speculative.worth import MARGIN, GuessPace

if TYPE_CHECKING:
    from engine.scheduler.chunk import ScheduledChunk
    from engine.scheduler.request import Request

LONGEST_PAUSE = 64  # steps that one request goes without guesses
LONGEST_REST = 512  # steps that all do, where guesses do not pay
LIKELY = 0.25  # guesses less likely than this to be right are not made
REMEMBERED = 0.75  # of a request's past, at each new step
EMPTY = 8  # steps in a row in which nobody had a guess, before all rest as long: steps that guess do not overlap
LOOKS = 2  # steps between two such rests, the next twice as long ...
LONGEST_EMPTY = 32  # ... up to here
TRIAL = 3  # steps with guesses after a rest, whatever was measured before it
BASELINE_STEPS = 4
BASELINE_EVERY = 200  # steps with guesses, after which some without are measured again


@dataclass(slots=True)
class _Record:
    """How a request's guesses fared."""

    right: float = 1.5  # before anything is known, three of four are taken to be right
    tried: float = 2.0
    misses: int = 0  # drafts in a row of which nothing was right
    pause: int = 0  # steps to go before the next guess

    @property
    def rate(self) -> float:
        return self.right / self.tried

    def note(self, guesses: int, right: int) -> None:
        self.right = REMEMBERED * self.right + right
        self.tried = REMEMBERED * self.tried + min(right + 1, guesses)
        self.misses = 0 if right else self.misses + 1
        self.pause = 0 if right else min(LONGEST_PAUSE, 2**self.misses)


class Speculation:
    """Owner: the scheduler."""

    def __init__(self, drafters: Sequence[Drafter] = (), *, clock: Callable[[], float] = time.perf_counter) -> None:
        """drafters are asked in order, each for the requests that those before it had no guess for."""
        self.drafters: list[Drafter] = [ForcedDrafter(), LookupDrafter(), *drafters]
        self.heeds_cost = True  # False: guesses are made whether they pay or not
        self.pace = GuessPace()
        self._clock = clock
        self._records: dict[str, _Record] = {}
        self._plan: dict[str, list[int]] = {}
        self._rest = 0  # steps to go without guesses
        self._rests = 0  # in a row
        self._trial = 0  # steps to go before what was measured counts again
        self._since_baseline = 0
        self._empty = 0  # steps in a row without a guess
        self._empty_rest = EMPTY

    @property
    def is_resting(self) -> bool:
        """Whether no guess is made in the coming step, so that it need not know the newest tokens."""
        return self._rest > 0

    def begin(self, wishes: Sequence[Wish], rows: int) -> None:
        """Make a step's guesses. rows are the sequences that decode in it."""
        self._plan = {}
        if self._rest:
            self._rest -= 1
            self._trial = TRIAL
            return
        if not wishes:
            return
        if self.heeds_cost and self._needs_baseline(rows):
            self._rest = BASELINE_STEPS  # measured as they run without guesses: one launched before another is read
            return
        open_wishes = [wish for wish in map(self._wish, wishes) if wish is not None]
        for drafter in self.drafters:
            left = [(request, count) for request, count in open_wishes if request.id not in self._plan]
            if not left:
                break
            began = self._clock()
            self._plan |= drafter.propose(left)
            if not drafter.free:
                self.pace.note_drafting(rows, self._clock() - began)
        self._keep_to_grammars(wishes)
        if self._plan or any(request.grammar is not None for request, _ in wishes):  # a grammar may force some any time
            self._empty, self._empty_rest = 0, EMPTY
        else:
            self._empty += 1
        if self.heeds_cost and self._plan:
            self._keep_what_pays(rows)
        elif self.heeds_cost and self._empty >= EMPTY:
            self._rest, self._empty = self._empty_rest, EMPTY - LOOKS
            self._empty_rest = min(LONGEST_EMPTY, 2 * self._empty_rest)

    def take(self, request: Request, most: int) -> tuple[int, ...]:
        """The request's guesses of this step, at most so many."""
        return tuple(self._plan.pop(request.id, ())[: max(0, most)])

    def note(self, request: Request, guesses: int, right: int) -> None:
        self._records.setdefault(request.id, _Record()).note(guesses, right)

    def note_step(self, chunks: Sequence[ScheduledChunk], step_s: float) -> None:
        """What a step took. One with prompts in it says nothing here."""
        if chunks and all(chunk.is_decode for chunk in chunks):
            guesses = sum(len(chunk.draft) for chunk in chunks)
            self.pace.note(len(chunks), guesses, step_s)
            self._since_baseline = self._since_baseline + 1 if guesses else 0

    def observe(self, chunks: Sequence[ScheduledChunk]) -> None:
        """A step is queued: drafters may take what the model left of it."""
        for drafter in self.drafters:
            drafter.observe(chunks)

    def release(self, request_id: str) -> None:
        self._records.pop(request_id, None)
        self._plan.pop(request_id, None)
        for drafter in self.drafters:
            drafter.release(request_id)

    def _wish(self, wish: Wish) -> Wish | None:
        """As many guesses as are likely to be right; None while the request pauses."""
        request, most = wish
        record = self._records.setdefault(request.id, _Record())
        if record.pause:
            record.pause -= 1
            return None
        count, chance = 0, record.rate
        while count < most and (chance >= LIKELY or count == 0):
            count += 1
            chance *= record.rate
        return (request, count) if count else None

    def _needs_baseline(self, rows: int) -> bool:
        return not self.pace.knows_plain(rows) or self._since_baseline >= BASELINE_EVERY

    def _keep_to_grammars(self, wishes: Sequence[Wish]) -> None:
        for request, _ in wishes:
            draft = self._plan.get(request.id)
            if draft and request.grammar is not None:
                allowed = request.grammar.allowed(draft)
                if allowed:
                    self._plan[request.id] = draft[:allowed]
                else:
                    del self._plan[request.id]

    def _keep_what_pays(self, rows: int) -> None:
        """Shorten the plan to the length with the largest gain; rest, longer each time, where there is none."""
        if self._trial:
            self._trial -= 1
            return
        longest = max(map(len, self._plan.values()))
        best, best_gain = longest, 0.0
        length = longest
        while length:
            gain = self.pace.gain(rows, *self._expected(length))
            if gain is None:
                return  # not measured yet: try it
            if gain > best_gain:
                best, best_gain = length, gain
            length //= 2
        if best_gain < MARGIN:
            self._plan = {}
            self._rest = min(LONGEST_REST, 8 * 2**self._rests)
            self._rests += 1
            return
        self._rests = 0
        self._plan = {request_id: draft[:best] for request_id, draft in self._plan.items()}

    def _expected(self, length: int) -> tuple[float, float]:
        """(guesses, of them right) of the plan, no draft longer than length."""
        guesses, right = 0, 0.0
        for request_id, draft in self._plan.items():
            record = self._records.get(request_id)
            chance = rate = record.rate if record is not None else 0.0
            for _ in draft[:length]:
                guesses += 1
                right += chance
                chance *= rate
        return guesses, right
