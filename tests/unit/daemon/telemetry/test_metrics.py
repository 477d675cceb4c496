"""Metrics: every one documented, bounded labels, unknown is absent and zero is a reading."""

from __future__ import annotations

from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from daemon.telemetry.catalogue import EVERY
from daemon.telemetry.metrics import Metrics
from daemon.workers.states import WorkerState as S
from engine.messages import WorkerStats
from tests.unit.daemon.test_router import view


def samples(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    found = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            found[(sample.name, tuple(sorted(sample.labels.items())))] = sample.value
    return found


def names(metrics: Metrics) -> set[str]:
    found = set()
    for family in text_string_to_metric_families(metrics.render().decode()):
        found.add(family.name + ("_total" if family.type == "counter" else ""))
    return found


def test_every_metric_is_rendered_and_in_the_catalogue() -> None:
    metrics = Metrics()
    assert names(metrics) == {spec.name for spec in EVERY}
    assert len({spec.name for spec in EVERY}) == len(EVERY)


def test_ended_request_leaves_its_counts_and_times() -> None:
    metrics = Metrics()
    metrics.request_ended("m", "stop", prompt_tokens=10, cached_tokens=4, output_tokens=11, ttft_s=0.5, total_s=1.5)
    got = samples(metrics)
    m = (("model", "m"),)
    assert got[("bayard_requests_total", (("model", "m"), ("outcome", "stop")))] == 1
    assert got[("bayard_prompt_tokens_total", m)] == 10
    assert got[("bayard_cached_prompt_tokens_total", m)] == 4
    assert got[("bayard_output_tokens_total", m)] == 11
    assert got[("bayard_time_to_first_token_seconds_sum", m)] == 0.5
    assert got[("bayard_request_seconds_sum", m)] == 1.5
    assert abs(got[("bayard_inter_token_seconds_sum", m)] - 0.1) < 1e-9


def test_refused_request_has_no_times() -> None:
    metrics = Metrics()
    metrics.request_ended("m", "queue_full")
    got = samples(metrics)
    assert got[("bayard_requests_total", (("model", "m"), ("outcome", "queue_full")))] == 1
    assert not [key for key in got if key[0] == "bayard_request_seconds_count"]


def test_worker_without_statistics_has_a_state_and_nothing_made_up() -> None:
    metrics = Metrics()
    metrics.views = lambda: [view(S.STARTING)]
    got = samples(metrics)
    who: tuple[tuple[str, str], ...] = (("model", "m"), ("state", "starting"), ("worker", "w"))
    assert got[("bayard_worker_state", who)] == 1
    assert sum(value for key, value in got.items() if key[0] == "bayard_worker_state") == 1
    assert not [key for key in got if key[0].startswith(("bayard_engine", "bayard_kv", "bayard_worker_step"))]


def test_worker_statistics_are_read_at_the_scrape() -> None:
    metrics = Metrics()
    stats = WorkerStats(step=7, running=2, waiting=0, kv_pages_total=9, kv_pages_active=4, kv_pages_cached=1)
    metrics.views = lambda: [view(S.READY, stats=stats, step_age_s=0.25, restarts=3)]
    got = samples(metrics)
    who: tuple[Any, ...] = (("model", "m"), ("worker", "w"))
    assert got[("bayard_engine_running", who)] == 2
    assert got[("bayard_engine_waiting", who)] == 0
    assert got[("bayard_engine_steps_total", who)] == 7
    assert got[("bayard_worker_restarts_total", who)] == 3
    assert got[("bayard_worker_step_age_seconds", who)] == 0.25
    assert got[("bayard_kv_pages", (("model", "m"), ("use", "active"), ("worker", "w")))] == 4
    assert ("bayard_engine_outlier_misses_total", who) not in got, "unknown is not zero"
    counted = WorkerStats(outlier_misses_total=12)
    metrics.views = lambda: [view(S.READY, stats=counted)]
    assert samples(metrics)[("bayard_engine_outlier_misses_total", who)] == 12
