"""Freshness by the clock, and waits that grow."""

from __future__ import annotations

from admin_tui.link import Link, LinkState


def test_link_when_nothing_came_yet_is_connecting() -> None:
    assert Link().state(0.0) is LinkState.CONNECTING


def test_link_ages_from_ok_over_stale_to_silent() -> None:
    link = Link().answered(100.0)
    states = [link.state(100.0 + age) for age in (0, 5, 5.1, 30, 30.1)]
    assert states == [LinkState.OK, LinkState.OK, LinkState.STALE, LinkState.STALE, LinkState.SILENT]
    assert [link.writable(100.0 + age) for age in (0, 6)] == [True, False]


def test_link_when_nobody_listens_is_down_until_answered() -> None:
    link = Link().answered(100.0).failed("gone", "start it", down=True)
    assert link.state(100.0) is LinkState.DOWN
    assert link.answered(101.0).state(101.0) is LinkState.OK


def test_link_waits_double_to_thirty_seconds() -> None:
    link, waits = Link(), []
    for _ in range(7):
        link = link.failed("", "", down=True)
        waits.append(link.wait_s(1.0))
    assert waits == [1, 2, 4, 8, 16, 30, 30]
    assert link.answered(0.0).wait_s(1.0) == 1.0
