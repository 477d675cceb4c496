"""GrammarState: one request's place in its grammar. Fed each of its tokens, asked which may come next."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from engine.errors import InvalidParameter

Bits = NDArray[np.int32]


class Verdict(StrEnum):
    """What a token did to the output."""

    GOES_ON = "goes_on"
    COMPLETE = "complete"  # nothing can follow: the request ends with this token
    ENDED = "ended"  # the token stands for the end and is none of the output


class GrammarState:
    """Mutable. Owner: its request."""

    def __init__(
        self, matcher: LLMatcher, vocab_size: int, stop_token_ids: Sequence[int], eos_token_ids: Sequence[int]
    ) -> None:
        """eos_token_ids are what the matcher itself takes for the end."""
        self._matcher = matcher
        self.words = -(-vocab_size // 32)  # of a mask
        self._stops = tuple(stop_token_ids)
        self._ends = tuple(set(stop_token_ids) | set(eos_token_ids))
        self._any = next(token for token in range(len(self._ends) + 1) if token not in self._ends)
        self._exhausted = False  # the last mask had to allow an end that no token stands for
        self.failure: InvalidParameter | None = None  # why the request must end: its masks can no longer be told

    def fill(self, row: Bits, *, may_stop: bool) -> None:
        """The next token's mask: bit n of row says whether token n may come.

        may_stop: whether stop tokens count yet; they are allowed where the grammar may end.
        Shapes: row [words] int32, contiguous. Mutates: row, failure
        """
        self._matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        if self._has_failed():
            return
        for token in self._ends:
            _set_bit(row, token, False)
        accepting = self._matcher.is_accepting()
        if accepting and may_stop:
            for token in self._stops:
                _set_bit(row, token, True)
        self._exhausted = not row.any()
        if self._exhausted:
            if not accepting:
                self._fail("No token of the model fits what the grammar asks for next.")
            _set_bit(row, self._any, True)

    def fill_guessed(self, rows: Bits, draft: Sequence[int], *, may_stop: Sequence[bool]) -> None:
        """Masks for the next token and for the one after each guess, as far as guesses are allowed.

        Rows after a guess that is not are left as they are: it is refused, so nothing follows it.
        Shapes: rows [len(draft) + 1, words]. Mutates: rows
        """
        self.fill(rows[0], may_stop=may_stop[0])
        exhausted, taken = self._exhausted, 0
        for at, token in enumerate(draft):
            if token in self._ends or not get_bit(rows[at], token) or not self._matcher.consume_token(token):
                break
            taken += 1
            self.fill(rows[at + 1], may_stop=may_stop[at + 1])
        if taken:
            self._matcher.rollback(taken)
        self._exhausted = exhausted
        self._has_failed()

    def forced(self) -> list[int]:
        """Tokens that spell the only way on; empty where there are several, or the end may come."""
        found: list[int] = self._matcher.compute_ff_tokens()
        return found

    def allowed(self, draft: Sequence[int]) -> int:
        """How many leading guesses the grammar allows."""
        ends = next((at for at, token in enumerate(draft) if token in self._ends), len(draft))
        return int(self._matcher.validate_tokens(list(draft[:ends])))

    def accept(self, token: int) -> Verdict:
        """Take the token that was chosen. Mutates: failure, when the grammar cannot follow."""
        if self._exhausted or token in self._ends:
            return Verdict.ENDED
        self._matcher.consume_token(token)
        if self._has_failed():
            return Verdict.ENDED
        return Verdict.COMPLETE if self._matcher.is_stopped() else Verdict.GOES_ON

    def _has_failed(self) -> bool:
        if self._matcher.is_error():
            said = self._matcher.get_error().strip().splitlines()
            self._fail(f"The grammar could not be followed: {said[0] if said else 'no reason given'}.")
        return self.failure is not None

    def _fail(self, message: str) -> None:
        self.failure = self.failure or InvalidParameter(message, "Ask for a simpler one.", param="response_format")


def get_bit(row: Bits, token: int) -> bool:
    return bool((int(row[token >> 5]) >> (token & 31)) & 1)


def _set_bit(row: Bits, token: int, value: bool) -> None:
    words = row.view(np.uint32)
    bit = np.uint32(1 << (token & 31))
    words[token >> 5] = words[token >> 5] | bit if value else words[token >> 5] & ~bit
