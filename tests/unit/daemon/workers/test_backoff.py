"""Back-off: jittered, bounded, and it gives up in the end."""

from __future__ import annotations

import random

from daemon.workers.backoff import Backoff


def made(**changes: float) -> Backoff:
    values = {"base_s": 1.0, "max_s": 8.0, "latch_after": 6, "fast_exit_s": 60.0} | changes
    return Backoff(**values, rng=random.Random(7))  # type: ignore[arg-type]


def test_bound_doubles_up_to_the_maximum() -> None:
    for exits, bound in ((1, 1.0), (2, 2.0), (3, 4.0), (4, 8.0), (5, 8.0)):
        delays = []
        for seed in range(300):
            backoff = made()
            backoff.rng = random.Random(seed)
            for _ in range(exits):
                delay = backoff.next_delay_s(reached_ready=False, served_s=0.0)
            assert delay is not None
            delays.append(delay)
        assert 0.0 <= min(delays) < 0.05 * bound
        assert 0.95 * bound < max(delays) <= bound


def test_latches_at_the_given_number_of_fast_exits() -> None:
    backoff = made(latch_after=3)
    assert [backoff.next_delay_s(reached_ready=True, served_s=1.0) is None for _ in range(3)] == [False, False, True]


def test_exit_after_long_service_is_not_fast() -> None:
    backoff = made(latch_after=2)
    for _ in range(20):
        delay = backoff.next_delay_s(reached_ready=True, served_s=61.0)
        assert delay is not None
        assert delay <= 1.0
    assert backoff.fast_exits == 0


def test_long_load_that_fails_is_fast() -> None:
    backoff = made(latch_after=1)
    assert backoff.next_delay_s(reached_ready=False, served_s=0.0) is None


def test_reset_starts_over() -> None:
    backoff = made(latch_after=2)
    backoff.next_delay_s(reached_ready=False, served_s=0.0)
    backoff.reset()
    assert backoff.next_delay_s(reached_ready=False, served_s=0.0) is not None
