"""Tokens are set aside before they are made and settled when they are known; nothing is spent twice."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime, timedelta

import pytest

from daemon.tenants.admission import Admission
from daemon.tenants.limits import TenantLimits
from daemon.tenants.principal import Principal, Role
from engine.errors import Draining, QuotaExceeded

NOON = datetime(2026, 3, 31, 12, 0, tzinfo=UTC)


def who(tenant: str = "acme", **limits: int) -> Principal:
    return Principal(tenant, tenant, "k", "bk", Role.INFERENCE, TenantLimits(**limits))


class Clocks:
    def __init__(self) -> None:
        self.mono = 100.0
        self.at = NOON

    def door(self) -> Admission:
        return Admission(10_000, lambda: 0, lambda: self.mono, lambda: self.at)


async def test_day_quota_holds_for_streams_side_by_side() -> None:
    clocks = Clocks()
    door, one = clocks.door(), who(tokens_per_day=1_000)
    first, second = await door.enter(one, "m", 1), await door.enter(one, "m", 1)
    assert first.reserve(100, 500) == 500
    with pytest.raises(QuotaExceeded, match="600 are set aside") as caught:
        second.reserve(100, 500)
    assert caught.value.retry_after_s == 1.0  # the running one may leave enough
    first.release(150)
    second.release()
    third = await door.enter(one, "m", 1)
    assert third.reserve(100, 700) == 700
    third.release(800)
    with pytest.raises(QuotaExceeded, match="950 are used") as caught:
        (await door.enter(one, "m", 1)).reserve(1, 50)
    assert caught.value.retry_after_s == 12 * 3600


async def test_month_quota_binds_beside_the_day_and_starts_anew() -> None:
    clocks = Clocks()
    door, one = clocks.door(), who(tokens_per_day=1_000, tokens_per_month=1_200)
    for day in (30, 31):
        clocks.at = NOON.replace(day=day)
        ticket = await door.enter(one, "m", 1)
        ticket.reserve(100, 500)
        ticket.release(600)
    with pytest.raises(QuotaExceeded, match="1,200 tokens a month"):
        (await door.enter(one, "m", 1)).reserve(1, 1)
    clocks.at = NOON + timedelta(days=1)  # the first of April
    assert (await door.enter(one, "m", 1)).reserve(100, 900) == 900


async def test_clock_set_back_finds_what_it_had_counted() -> None:
    clocks = Clocks()
    door, one = clocks.door(), who(tokens_per_day=100)
    ticket = await door.enter(one, "m", 1)
    ticket.reserve(50, 50)
    clocks.at += timedelta(days=400)
    ticket.release(100)  # settled in the day that it was reserved in
    assert (await door.enter(one, "m", 1)).reserve(50, 50) == 50
    clocks.at = NOON
    with pytest.raises(QuotaExceeded, match="100 are used"):
        (await door.enter(one, "m", 1)).reserve(1, 1)


async def test_flexible_output_is_cut_to_what_the_quota_leaves() -> None:
    clocks = Clocks()
    door, one = clocks.door(), who(tokens_per_day=1_000)
    ticket = await door.enter(one, "m", 2)
    assert ticket.reserve(100, 50_000, flexible=True) == 900
    with pytest.raises(QuotaExceeded):
        (await door.enter(one, "m", 2)).reserve(10, 50_000, flexible=True)
    ticket.release(1_000)


async def test_rate_gives_back_what_was_not_used() -> None:
    clocks = Clocks()
    door, one = clocks.door(), who(tokens_per_minute=600)
    ticket = await door.enter(one, "m", 1)
    ticket.reserve(100, 500)
    assert [(rate.what, rate.limit, rate.remaining, rate.reset_s) for rate in ticket.rates()] == [
        ("tokens", 600, 0, 60.0)
    ]
    ticket.release(200)
    assert door.rates_of(one)[0].remaining == 400
    with pytest.raises(QuotaExceeded, match="may need 401"):
        (await door.enter(one, "m", 1)).reserve(1, 400)
    clocks.mono += 0.1
    (await door.enter(one, "m", 1)).reserve(1, 400)


async def test_burst_bounds_what_goes_at_once_and_new_limits_forgive_nothing() -> None:
    clocks = Clocks()
    door, one = clocks.door(), who(requests_per_minute=60, request_burst=3)
    for _ in range(3):
        (await door.enter(one, "m", 1)).release()
    with pytest.raises(QuotaExceeded, match="60 requests a minute"):
        await door.enter(one, "m", 1)
    with pytest.raises(QuotaExceeded, match="120 requests a minute"):  # raised by one: 3 of 3 are still used
        await door.enter(who(requests_per_minute=120, request_burst=3), "m", 1)
    (await door.enter(who(requests_per_minute=60, request_burst=4), "m", 1)).release()


async def test_request_larger_than_the_burst_runs_alone_from_a_full_bucket() -> None:
    clocks = Clocks()
    door, one = clocks.door(), who(tokens_per_minute=100)
    ticket = await door.enter(one, "m", 1)
    ticket.reserve(50, 1_000)
    with pytest.raises(QuotaExceeded):
        door.knock(one)
    ticket.release(60)
    door.knock(one)


async def test_paused_admission_says_why() -> None:
    door = Clocks().door()
    door.paused = "maintenance until noon"
    with pytest.raises(Draining, match="maintenance until noon"):
        await door.enter(who(), "m", 1)


async def test_limits_hold_exactly_under_five_hundred_clients() -> None:
    """Neither quota nor concurrency is overstepped by one token or one generation, at any moment."""
    draw = random.Random(7)
    door = Admission(10_000, lambda: 0)
    one = who(tokens_per_day=60_000, max_concurrency=32)
    window = door.quotas_of("acme").day
    refused = 0
    most_running = 0

    async def client() -> None:
        nonlocal refused, most_running
        for _ in range(4):
            ticket = await door.enter(one, "m", 1)
            most_running = max(most_running, door.running)
            used = 0
            try:
                granted = ticket.reserve(draw.randint(1, 50), draw.randint(1, 200), flexible=draw.random() < 0.3)
            except QuotaExceeded:
                refused += 1
            else:
                await asyncio.sleep(0)
                used = draw.randint(0, granted)
            ticket.release(used)
            now = window.window(door.now())
            assert now.used + now.reserved <= 60_000

    await asyncio.gather(*(client() for _ in range(500)))
    end = window.window(door.now())
    assert (door.running, door.waiting, end.reserved) == (0, 0, 0)
    assert 59_000 < end.used <= 60_000
    assert most_running <= 32
    assert refused > 100
