"""Brake: guesses from one address get slower, and nobody else does."""

from __future__ import annotations

import pytest

from daemon.tenants.brake import FREE_FAILURES, MAX_ADDRESSES, Brake, group_of
from engine.errors import TooManyAttempts


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_brake_waits_longer_each_time_and_only_for_that_address() -> None:
    clock = Clock()
    brake = Brake(clock)
    for _ in range(FREE_FAILURES):
        brake.check("10.0.0.1", "wrong")
        brake.failed("10.0.0.1")
    with pytest.raises(TooManyAttempts, match=r"10 wrong keys came from 10\.0\.0\.1") as first:
        brake.check("10.0.0.1", "right")
    assert first.value.retry_after_s == 1.0
    brake.check("10.0.0.2", "wrong")
    clock.now += 1.1
    brake.check("10.0.0.1", "wrong")
    brake.failed("10.0.0.1")
    with pytest.raises(TooManyAttempts) as second:
        brake.check("10.0.0.1", "wrong")
    assert second.value.retry_after_s == 2.0
    assert brake.refusals == 2


def test_key_used_before_from_the_address_goes_on_working() -> None:
    brake = Brake(Clock())
    brake.succeeded("10.0.0.1", "mine")
    for _ in range(30):
        brake.failed("10.0.0.1")
    brake.check("10.0.0.1", "mine")
    with pytest.raises(TooManyAttempts):
        brake.check("10.0.0.1", "other")


def test_failures_are_forgotten_and_memory_is_bounded() -> None:
    clock = Clock()
    brake = Brake(clock)
    for _ in range(30):
        brake.failed("10.0.0.1")
    clock.now += 3600
    brake.failed("10.0.0.1")
    brake.check("10.0.0.1", "wrong")
    for number in range(MAX_ADDRESSES + 50):
        brake.failed(f"10.1.{number // 256}.{number % 256}")
    assert len(brake._failed) == MAX_ADDRESSES


def test_one_network_of_ipv6_is_one_guesser() -> None:
    assert group_of("2001:db8::1") == group_of("2001:db8::ffff:1") != group_of("2001:db8:0:1::1")
    assert group_of("::ffff:10.0.0.1") == "10.0.0.1"
    assert group_of("unix:") == "unix:"


def test_local_callers_without_an_address_are_not_counted() -> None:
    brake = Brake(Clock())
    for _ in range(50):
        brake.failed(None)
    brake.check(None, "any")
