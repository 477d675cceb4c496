"""Whatever clients do in whatever order, a tenant never has more than its limits say."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from daemon.tenants.admission import Admission, Ticket
from daemon.tenants.limits import TenantLimits
from daemon.tenants.principal import Principal, Role
from engine.errors import QuotaExceeded

DAY, MONTH, MINUTE, PLACES, REQUESTS = 2_000, 5_000, 1_500, 4, 30
LIMITS = TenantLimits(
    tokens_per_day=DAY, tokens_per_month=MONTH, tokens_per_minute=MINUTE, max_concurrency=PLACES, max_queue=3,
    requests_per_minute=REQUESTS, request_burst=10,
)  # fmt: skip
ONE = Principal("t", "t", "k", "bk", Role.INFERENCE, LIMITS)


class LimitsMachine(RuleBasedStateMachine):
    """A model of what may be spent, kept beside the real door."""

    running = Bundle("running")

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.mono, self.at = 0.0, datetime(2026, 1, 30, 23, 0, tzinfo=UTC)
        self.door = Admission(100, lambda: 0, lambda: self.mono, lambda: self.at)
        self.granted: dict[int, int] = {}
        self.inside = 0
        self.spent_by_day: dict[object, int] = {}
        self.spent_by_month: dict[object, int] = {}
        self.entered: list[float] = []
        self.number = 0

    def teardown(self) -> None:
        self.loop.close()

    def _turn(self) -> None:
        self.loop.run_until_complete(asyncio.sleep(0))

    @rule(target=running, prompt=st.integers(1, 400), output=st.integers(1, 800), flexible=st.booleans())
    def enter(self, prompt: int, output: int, flexible: bool) -> tuple[int, Ticket | None, object]:
        self.number += 1
        if self.inside >= PLACES:
            return (self.number, None, None)
        try:
            ticket = self.loop.run_until_complete(asyncio.wait_for(self.door.enter(ONE, "m", 1), 1))
        except QuotaExceeded:
            return (self.number, None, None)
        self.entered.append(self.mono)
        try:
            granted = ticket.reserve(prompt, output, flexible=flexible)
        except QuotaExceeded:
            ticket.release()
            return (self.number, None, None)
        assert granted <= output
        if not flexible:
            assert granted == output
        self.inside += 1
        self.granted[self.number] = prompt + granted
        return (self.number, ticket, (self.at.date(), (self.at.year, self.at.month)))

    @rule(taken=consumes(running), share=st.floats(0, 1))
    def end(self, taken: tuple[int, Ticket | None, object], share: float) -> None:
        number, ticket, when = taken
        if ticket is None:
            return
        used = int(self.granted.pop(number) * share)
        ticket.release(used)
        ticket.release(used)  # again does nothing
        self.inside -= 1
        day, month = when  # type: ignore[misc]
        self.spent_by_day[day] = self.spent_by_day.get(day, 0) + used
        self.spent_by_month[month] = self.spent_by_month.get(month, 0) + used

    @rule(seconds=st.floats(0.1, 90))
    def time_passes(self, seconds: float) -> None:
        self.mono += seconds
        self.at += timedelta(seconds=seconds)

    @rule(hours=st.sampled_from([-30, -1, 1, 26, 800]))
    def clock_jumps(self, hours: int) -> None:
        self.at += timedelta(hours=hours)

    @rule()
    def waiter_comes_and_gives_up(self) -> None:
        if self.inside < PLACES:
            return
        task = self.loop.create_task(self.door.enter(ONE, "m", 1))
        self._turn()
        if not task.done():
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
        if not task.cancelled() and task.exception() is None:
            task.result().release()

    @invariant()
    def nothing_is_overspent(self) -> None:
        assert self.door.running == self.inside <= PLACES
        assert self.door.waiting == 0
        assert all(spent <= DAY for spent in self.spent_by_day.values())
        assert all(spent <= MONTH for spent in self.spent_by_month.values())
        quotas = self.door.quotas_of("t")
        for quota, limit in ((quotas.day, DAY), (quotas.month, MONTH)):
            for window in quota._windows.values():
                assert window.reserved >= 0
                assert window.used + window.reserved <= limit
        recent = [at for at in self.entered if at > self.mono - 60]
        assert len(recent) <= 10 + REQUESTS

    @invariant()
    def reserved_is_what_runs(self) -> None:
        quotas = self.door.quotas_of("t")
        assert sum(window.reserved for window in quotas.day._windows.values()) == sum(self.granted.values())


LimitsMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestLimitsMachine = LimitsMachine.TestCase
