"""Guesses from the text itself."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.speculative import accepted, propose


def test_what_followed_last_time_is_proposed():
    assert propose([1, 2, 3, 4, 5, 9, 1, 2, 3], 3) == [4, 5, 9]


def test_latest_occurrence_and_longest_match_win():
    assert propose([1, 2, 7, 1, 2, 8, 1, 2], 1) == [8]
    assert propose([5, 1, 2, 7, 6, 1, 2, 8, 5, 1, 2], 1) == [7]


def test_nothing_is_proposed_without_a_match_or_a_wish():
    assert propose([1, 2, 3, 4], 3) == []
    assert propose([1, 2, 3, 2], 3) == [], "one equal token is not a match"
    assert propose([1, 2, 1, 2], 0) == []
    assert propose([], 4) == []


def test_accepted_counts_leading_agreement():
    assert accepted([4, 5, 6], [4, 5, 9, 1]) == 2
    assert accepted([4], [5, 1]) == 0
    assert accepted([], [5]) == 0


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(0, 8))
def test_a_proposal_always_stands_in_the_text_after_an_equal_end(tokens, count):
    draft = propose(tokens, count)
    assert len(draft) <= count
    if draft:
        tail = tokens[-2:]
        places = [i for i in range(len(tokens) - 2) if tokens[i : i + 2] == tail]
        assert any(tokens[i + 2 : i + 2 + len(draft)] == draft for i in places)
