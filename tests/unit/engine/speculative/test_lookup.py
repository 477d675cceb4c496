"""Guesses from the text itself."""

from __future__ import annotations

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from engine.speculative import LookupDrafter, SuffixIndex, accepted
from engine.speculative.lookup import A_STEP


def propose(tokens: list[int], count: int) -> list[int]:
    index = SuffixIndex()
    while not index.extend(tokens):
        pass
    return index.propose(tokens, count)


def test_what_followed_last_time_is_proposed():
    assert propose([1, 2, 3, 4, 5, 9, 1, 2, 3], 3) == [4, 5, 9]


def test_latest_occurrence_and_longest_match_win():
    assert propose([1, 2, 7, 1, 2, 8, 1, 2], 1) == [8]
    assert propose([5, 1, 2, 7, 6, 1, 2, 8, 5, 1, 2], 1) == [7]


def test_text_that_goes_in_a_circle_is_followed_past_its_end():
    assert propose([1, 2, 3, 1, 2, 3, 1, 2], 6) == [3, 1, 2, 3, 1, 2]


def test_short_match_gives_a_short_draft():
    assert propose([1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2], 8) == [3, 4, 5, 6]


def test_nothing_is_proposed_without_a_match_or_a_wish():
    assert propose([1, 2, 3, 4], 3) == []
    assert propose([1, 2, 3, 2], 3) == [], "one equal token is not a match"
    assert propose([1, 2, 1, 2], 0) == []
    assert propose([], 4) == []


def test_accepted_counts_leading_agreement():
    assert accepted([4, 5, 6], [4, 5, 9, 1]) == 2
    assert accepted([4], [5, 1]) == 0
    assert accepted([], [5]) == 0


def test_long_prompt_is_taken_in_over_several_steps():
    request = SimpleNamespace(id="a", token_ids=[n % 7 for n in range(3 * A_STEP)])
    drafter = LookupDrafter()
    assert drafter.propose([(request, 4)]) == {}
    assert drafter.propose([(request, 4)]) == {}
    after = [n % 7 for n in range(3 * A_STEP, 3 * A_STEP + 4)]
    assert drafter.propose([(request, 4)]) == {"a": after}
    drafter.release("a")
    request.token_ids = [1, 2, 3, 1, 2]
    assert drafter.propose([(request, 2)]) == {"a": [3, 1]}


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(0, 8), st.integers(1, 5))
def test_a_proposal_always_follows_an_equal_end_however_the_text_grew(tokens, count, pace):
    draft = propose(tokens, count)
    assert len(draft) <= count
    if draft:
        whole = [*tokens, *draft]
        places = [i for i in range(len(tokens) - 2) if tokens[i : i + 2] == tokens[-2:]]
        assert any(whole[i + 2 : i + 2 + len(draft)] == draft for i in places)
    grown = SuffixIndex()
    for end in range(1, len(tokens) + 1, pace):
        grown.extend(tokens[:end])
    grown.extend(tokens)
    assert grown.propose(tokens, count) == draft
