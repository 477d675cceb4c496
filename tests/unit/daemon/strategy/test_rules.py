"""Rules as they are changed: what is named is taken or refused, never dropped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from daemon.planning.profile import Profile
from daemon.strategy.rules import Rules
from engine.errors import InvalidParameter, NotFound


@pytest.fixture
def ruled(rules: Rules, profile: Callable[..., Profile], saved: Callable[..., Any]) -> Rules:
    saved("a", profile())
    rules.add("day", "0  8\t* *\n*", 3600, "a", "Europe/Berlin")
    return rules


def test_cron_is_kept_in_one_line(ruled: Rules) -> None:
    assert [rule.cron for rule in ruled.all()] == ["0 8 * * *"]
    assert ruled.change("day", cron=" 0 9 *  * *").cron == "0 9 * * *"


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"duration_s": 0}, InvalidParameter),
        ({"duration_s": -1}, InvalidParameter),
        ({"cron": ""}, InvalidParameter),
        ({"plan": ""}, NotFound),
        ({"plan": "x" * 10_000}, NotFound),
        ({"timezone": "x" * 10_000}, InvalidParameter),
    ],
)
def test_change_to_what_cannot_be_is_refused_in_a_short_sentence(
    ruled: Rules, change: dict[str, Any], error: type[Exception]
) -> None:
    before = ruled.all()
    with pytest.raises(error) as caught:
        ruled.change("day", **change)
    assert len(str(caught.value)) < 400
    assert ruled.all() == before


def test_empty_timezone_is_the_settings(ruled: Rules) -> None:
    assert ruled.change("day", timezone="").timezone == ruled.timezone


def test_reason_that_would_fill_the_log_is_refused(ruled: Rules) -> None:
    with pytest.raises(InvalidParameter, match="10,000 characters"):
        ruled.set_override("a", None, "x" * 10_000, "ana")
    assert ruled.override() is None
