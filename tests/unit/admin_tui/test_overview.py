"""What the overview says where there is nothing to list."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from admin_tui.answers import Status
from admin_tui.clock import Clock
from admin_tui.look import Look
from admin_tui.screens.overview import worker_lines


def status(state: str, plan: str | None) -> Status:
    return Status(as_of=datetime(2026, 1, 1, tzinfo=UTC), hostname="h", version="1", state=state, plan=plan)


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (None, "no plan is active"),
        (status("serving", None), "no plan is active"),
        (status("serving", "latency"), "plan latency has none running"),
        (status("draining", "latency"), "the daemon is stopping"),
        (status("draining", None), "the daemon is stopping"),
    ],
)
def test_no_workers_says_why_there_are_none(told: Status | None, said: str) -> None:
    (line,) = worker_lines([], told, Clock(), 100, Look())
    assert said in line[0].text
