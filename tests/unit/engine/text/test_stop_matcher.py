"""Stop strings across the borders of deltas."""

from __future__ import annotations

from engine.text import StopMatcher


def test_feed_holds_only_a_proper_prefix():
    matcher = StopMatcher(["END"])
    assert matcher.feed("xE") == ("x", False)
    assert matcher.feed("NE") == ("EN", False)
    assert matcher.feed("N") == ("", False)
    assert matcher.feed("Dmore") == ("", True)
    assert matcher.matched == "END"
    assert matcher.feed("again") == ("", True)
    assert matcher.flush() == ""


def test_flush_returns_what_was_held():
    matcher = StopMatcher(["\n\n"])
    assert matcher.feed("a\n") == ("a", False)
    assert matcher.flush() == "\n"
    assert matcher.matched is None


def test_feed_self_overlapping_stop_is_found():
    matcher = StopMatcher(["aab"])
    assert matcher.feed("aa") == ("", False)
    assert matcher.feed("ab!") == ("a", True)


def test_feed_the_first_complete_stop_wins():
    assert StopMatcher(["abcd", "bc"]).feed("abcd") == ("a", True)
    longer = StopMatcher(["c", "abc"])
    assert longer.feed("xabc") == ("x", True)
    assert longer.matched == "abc"


def test_feed_without_stops_passes_all():
    matcher = StopMatcher([])
    assert matcher.feed("anything") == ("anything", False)
    assert matcher.flush() == ""
