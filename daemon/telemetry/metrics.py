"""The daemon's Prometheus registry: what requests leave behind, and what the workers say at the moment of a scrape."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import psutil
from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from daemon.telemetry import catalogue as c
from daemon.workers.states import WorkerState
from daemon.workers.view import WorkerView
from hwdetect.accelerator import Accelerator

if TYPE_CHECKING:
    from daemon.api.connections import Connections

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Owner: the Appliance. Label values are bounded: models and workers of the box, routes as templates."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series a counter that nobody reads
        self.registry = CollectorRegistry(auto_describe=False)
        self.requests = self._counter(c.REQUESTS)
        self.prompt_tokens = self._counter(c.PROMPT_TOKENS)
        self.cached_tokens = self._counter(c.CACHED_TOKENS)
        self.output_tokens = self._counter(c.OUTPUT_TOKENS)
        self.ttft_s = self._histogram(c.TTFT)
        self.inter_token_s = self._histogram(c.INTER_TOKEN)
        self.request_s = self._histogram(c.REQUEST_SECONDS)
        self.http_responses = self._counter(c.HTTP_RESPONSES)
        self.usage_unrecorded = self._counter(c.UNRECORDED)
        self.views: Callable[[], list[WorkerView]] = list
        self.admission_waiting: Callable[[], int] = int
        self.event_failures: Callable[[], int] = int
        self.accelerators: Callable[[], Iterable[Accelerator]] = tuple
        self.refused_guesses: Callable[[], int] = int
        self.certificate_left_s: Callable[[], float | None] = lambda: None
        self.connections: Callable[[], Connections | None] = lambda: None
        self.ready_mono: float | None = None
        self.registry.register(_AtScrape(self))

    def request_ended(
        self,
        model: str,
        outcome: str,
        *,
        prompt_tokens: int = 0,
        cached_tokens: int = 0,
        output_tokens: int = 0,
        ttft_s: float | None = None,
        total_s: float | None = None,
    ) -> None:
        """Count one request. model is a served name, or "unknown": never a client's free text."""
        self.requests.labels(model, outcome).inc()
        if prompt_tokens:
            self.prompt_tokens.labels(model).inc(prompt_tokens)
        if cached_tokens:
            self.cached_tokens.labels(model).inc(cached_tokens)
        if output_tokens:
            self.output_tokens.labels(model).inc(output_tokens)
        if ttft_s is not None:
            self.ttft_s.labels(model).observe(ttft_s)
        if total_s is not None:
            self.request_s.labels(model).observe(total_s)
            if ttft_s is not None and output_tokens > 1:
                self.inter_token_s.labels(model).observe((total_s - ttft_s) / (output_tokens - 1))

    def render(self) -> bytes:
        """The text Prometheus reads; its content type is CONTENT_TYPE."""
        return generate_latest(self.registry)

    def _counter(self, spec: c.MetricSpec) -> Counter:
        return Counter(spec.name, spec.meaning, spec.labels, registry=self.registry)

    def _histogram(self, spec: c.MetricSpec) -> Histogram:
        return Histogram(spec.name, spec.meaning, spec.labels, registry=self.registry, buckets=spec.buckets)


class _AtScrape(Collector):
    """An unknown value has no sample; 0 is a measured zero."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        families: dict[str, Any] = {spec.name: _family(spec) for spec in c.READ_AT_SCRAPE}
        families[c.TENANTS_WAITING.name].add_metric([], self._metrics.admission_waiting())
        families[c.EVENTS_UNSTORED.name].add_metric([], self._metrics.event_failures())
        if self._metrics.ready_mono is not None:
            families[c.UPTIME.name].add_metric([], time.monotonic() - self._metrics.ready_mono)
        families[c.GUESSES.name].add_metric([], self._metrics.refused_guesses())
        left_s = self._metrics.certificate_left_s()
        if left_s is not None:
            families[c.CERTIFICATE.name].add_metric([], left_s)
        own = psutil.Process()
        families[c.DAEMON_RSS.name].add_metric([], own.memory_info().rss)
        families[c.DAEMON_FDS.name].add_metric([], own.num_fds())
        held = self._metrics.connections()
        if held is not None:
            for labels, value in (("busy", len(held) - held.idle), ("idle", held.idle)):
                families[c.CONNECTIONS.name].add_metric([labels], value)
            for labels, value in (("evicted", held.evicted), ("refused", held.refused)):
                families[c.CONNECTIONS_CLOSED.name].add_metric([labels], value)
        for device in self._metrics.accelerators():
            _add_device(families, device)
        for view in self._metrics.views():
            _add_worker(families, view)
        return families.values()


def _add_device(families: dict[str, Any], device: Accelerator) -> None:
    who = [device.vendor.value if device.index is None else f"{device.vendor.value}{device.index}"]
    families[c.DEVICE_STATE.name].add_metric(who, float(device.usable))
    used = device.utilisation_percent
    for name, labels, value in (
        (c.DEVICE_MEMORY.name, [*who, "total"], device.memory_total_bytes),
        (c.DEVICE_MEMORY.name, [*who, "used"], device.memory_used_bytes),
        (c.DEVICE_USE.name, who, None if used is None else used / 100),
        (c.DEVICE_TEMPERATURE.name, who, device.temperature_c),
        (c.DEVICE_POWER.name, who, device.power_w),
    ):
        if value is not None:
            families[name].add_metric(labels, value)


def _add_worker(families: dict[str, Any], view: WorkerView) -> None:
    who = [view.name, view.model]
    for state in WorkerState:
        families[c.WORKER_STATE.name].add_metric([*who, state.value], float(view.state is state))
    families[c.WORKER_RESTARTS.name].add_metric(who, view.restarts)
    if view.step_age_s is not None:
        families[c.STEP_AGE.name].add_metric(who, view.step_age_s)
    stats = view.stats
    if stats is None:
        return
    for spec, value in (
        (c.RUNNING, stats.running),
        (c.WAITING, stats.waiting),
        (c.STEPS, stats.step),
        (c.PREFIX_HITS, stats.cached_tokens_total),
        (c.PREEMPTIONS, stats.preemptions_total),
        (c.SWAPPED_PAGES, stats.swapped_pages),
        (c.DEADLINES, stats.deadlines_total),
        (c.SHED, stats.shed_total),
        (c.WORKER_RSS, stats.rss_bytes),
        (c.WORKER_DEVICE, stats.device_bytes),
    ):
        families[spec.name].add_metric(who, value)
    if stats.outlier_misses_total is not None:
        families[c.OUTLIER_MISSES.name].add_metric(who, stats.outlier_misses_total)
    for outcome, tokens in (("guessed", stats.draft_tokens_total), ("accepted", stats.draft_accepted_total)):
        families[c.DRAFTS.name].add_metric([*who, outcome], tokens)
    for use, pages in (
        ("total", stats.kv_pages_total),
        ("active", stats.kv_pages_active),
        ("cached", stats.kv_pages_cached),
    ):
        families[c.KV_PAGES.name].add_metric([*who, use], pages)
    for direction, count in (("out", stats.swap_outs_total), ("in", stats.swap_ins_total)):
        families[c.SWAPS.name].add_metric([*who, direction], count)


def _family(spec: c.MetricSpec) -> Metric:
    kind = CounterMetricFamily if spec.kind == "counter" else GaugeMetricFamily
    family: Metric = kind(spec.name, spec.meaning, labels=spec.labels)
    return family
