"""RecentRequests: exact within its window, and honest when the window had to shrink."""

from __future__ import annotations

import pytest

from daemon.serving.recent import EndedRequest, RecentRequests


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_summary_of_nothing_is_unknown_and_not_zero() -> None:
    clock = Clock()
    recent = RecentRequests(clock=clock)
    clock.now += 10
    summary = recent.summary()
    assert (summary.window_s, summary.requests_done, summary.output_tok_s) == (10, 0, 0.0)
    assert summary.ttft_p50_s is summary.itl_p95_s is summary.prefix_hit_ratio is None


def test_summary_counts_what_ended_within_the_window() -> None:
    clock = Clock()
    recent = RecentRequests(window_s=100, clock=clock)
    recent.add(EndedRequest(clock.now, prompt_tokens=1000, output_tokens=1000))
    clock.now += 150
    for number in range(10):
        recent.add(
            EndedRequest(
                clock.now, prompt_tokens=10, cached_tokens=5, output_tokens=20, ttft_s=float(number), inter_token_s=0.1
            )
        )
    recent.add(EndedRequest(clock.now, failed=True))
    recent.add(EndedRequest(clock.now, refused=True))
    summary = recent.summary()
    assert (summary.requests_done, summary.requests_failed, summary.requests_rejected) == (10, 1, 1)
    assert summary.output_tok_s == pytest.approx(2.0)
    assert summary.prefix_hit_ratio == pytest.approx(0.5)
    assert (summary.ttft_p50_s, summary.ttft_p95_s) == (5.0, 9.0)


def test_full_store_shortens_the_window_and_says_so() -> None:
    clock = Clock()
    recent = RecentRequests(window_s=100, max_records=5, clock=clock)
    for _ in range(10):
        clock.now += 1
        recent.add(EndedRequest(clock.now, output_tokens=10))
    summary = recent.summary()
    assert summary.window_s == pytest.approx(5.0)
    assert summary.output_tok_s == pytest.approx(10.0)
