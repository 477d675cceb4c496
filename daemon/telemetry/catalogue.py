"""Every metric: name, kind, labels and meaning. docs/metrics.md is made from this list. Imports nothing of Bayard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

LATENCY_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
TOKEN_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 5.0)


@dataclass(frozen=True, slots=True)
class MetricSpec:
    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    meaning: str
    buckets: tuple[float, ...] = ()


REQUESTS = MetricSpec(
    "bayard_requests_total",
    "counter",
    ("model", "outcome"),
    "Inference requests ended, by finish reason (stop, length, abort, error) or refusal code.",
)
PROMPT_TOKENS = MetricSpec("bayard_prompt_tokens_total", "counter", ("model",), "Prompt tokens of ended requests.")
CACHED_TOKENS = MetricSpec(
    "bayard_cached_prompt_tokens_total", "counter", ("model",), "Prompt tokens whose KV came from the prefix cache."
)
OUTPUT_TOKENS = MetricSpec("bayard_output_tokens_total", "counter", ("model",), "Tokens generated.")
TTFT = MetricSpec(
    "bayard_time_to_first_token_seconds",
    "histogram",
    ("model",),
    "From the request's arrival to its first token.",
    LATENCY_BUCKETS_S,
)
INTER_TOKEN = MetricSpec(
    "bayard_inter_token_seconds", "histogram", ("model",), "Mean time between tokens of a request.", TOKEN_BUCKETS_S
)
REQUEST_SECONDS = MetricSpec(
    "bayard_request_seconds", "histogram", ("model",), "From the request's arrival to its end.", LATENCY_BUCKETS_S
)
HTTP_RESPONSES = MetricSpec(
    "bayard_http_responses_total", "counter", ("route", "status"), "HTTP answers by route template and status."
)
UNRECORDED = MetricSpec(
    "bayard_usage_unrecorded_total",
    "counter",
    (),
    "Requests whose usage could not be stored. Anything but 0 is a fault.",
)
TENANTS_WAITING = MetricSpec(
    "bayard_admission_waiting", "gauge", (), "Requests that wait at the door for their tenant's concurrency."
)
RUNNING = MetricSpec("bayard_engine_running", "gauge", ("worker", "model"), "Sequences in the worker's steps.")
WAITING = MetricSpec("bayard_engine_waiting", "gauge", ("worker", "model"), "Requests in the worker's queue.")
KV_PAGES = MetricSpec(
    "bayard_kv_pages", "gauge", ("worker", "model", "use"), "KV pages by use: total, active (live), cached (reusable)."
)
STEP_AGE = MetricSpec(
    "bayard_worker_step_age_seconds", "gauge", ("worker", "model"), "Since the worker's counters last moved."
)
STEPS = MetricSpec("bayard_engine_steps_total", "counter", ("worker", "model"), "Engine steps of the present process.")
PREFIX_HITS = MetricSpec(
    "bayard_engine_prefix_hit_tokens_total", "counter", ("worker", "model"), "Prompt tokens found in the prefix cache."
)
PREEMPTIONS = MetricSpec(
    "bayard_engine_preemptions_total", "counter", ("worker", "model"), "Sequences put back for want of pages."
)
SWAPPED_PAGES = MetricSpec(
    "bayard_swapped_pages", "gauge", ("worker", "model"), "KV pages of preempted requests kept in host memory."
)
SWAPS = MetricSpec(
    "bayard_engine_swaps_total",
    "counter",
    ("worker", "model", "direction"),
    "Preempted sequences whose pages went to host memory (out) and came back (in).",
)
DEADLINES = MetricSpec(
    "bayard_engine_deadlines_total", "counter", ("worker", "model"), "Requests ended because their time was up."
)
SHED = MetricSpec(
    "bayard_engine_shed_total",
    "counter",
    ("worker", "model"),
    "Requests given up because a step of them alone needed more memory than there was.",
)
WORKER_RSS = MetricSpec("bayard_worker_resident_bytes", "gauge", ("worker", "model"), "Resident memory of the worker.")
WORKER_DEVICE = MetricSpec(
    "bayard_worker_device_bytes", "gauge", ("worker", "model"), "Device memory the worker holds."
)
WORKER_STATE = MetricSpec("bayard_worker_state", "gauge", ("worker", "model", "state"), "1 for the state it is in.")
WORKER_RESTARTS = MetricSpec(
    "bayard_worker_restarts_total",
    "counter",
    ("worker", "model"),
    "Starts after an unwanted end, since the daemon's start.",
)
EVENTS_UNSTORED = MetricSpec(
    "bayard_event_store_failures_total", "counter", (), "Times the event log could not be written to the database."
)
DRAFTS = MetricSpec(
    "bayard_engine_draft_tokens_total",
    "counter",
    ("worker", "model", "outcome"),
    "Speculation: tokens guessed, and those of them that were accepted.",
)
OUTLIER_MISSES = MetricSpec(
    "bayard_engine_outlier_misses_total",
    "counter",
    ("worker", "model"),
    "Rows of inputs with an outlier outside the columns that 8-bit weights keep apart; absent where none are kept.",
)
DEVICE_MEMORY = MetricSpec(
    "bayard_accelerator_memory_bytes", "gauge", ("device", "use"), "Memory of an accelerator: total, used."
)
DEVICE_USE = MetricSpec(
    "bayard_accelerator_utilisation_ratio", "gauge", ("device",), "Share of time it computed, 0 to 1."
)
DEVICE_TEMPERATURE = MetricSpec("bayard_accelerator_temperature_celsius", "gauge", ("device",), "Its temperature.")
DEVICE_POWER = MetricSpec("bayard_accelerator_power_watts", "gauge", ("device",), "Power it draws.")
DEVICE_STATE = MetricSpec("bayard_accelerator_usable", "gauge", ("device",), "1 if it can be used, 0 if not.")
GUESSES = MetricSpec(
    "bayard_refused_key_guesses_total", "counter", (), "Calls refused unseen because of earlier wrong keys."
)
CERTIFICATE = MetricSpec(
    "bayard_certificate_expiry_seconds", "gauge", (), "Until the server's certificate expires; negative once it has."
)
DAEMON_RSS = MetricSpec("bayard_daemon_resident_bytes", "gauge", (), "Resident memory of the daemon.")
DAEMON_FDS = MetricSpec("bayard_daemon_open_files", "gauge", (), "File descriptors that the daemon holds open.")
CONNECTIONS = MetricSpec(
    "bayard_http_connections", "gauge", ("state",), "Connections of the HTTP port: busy with a request, or idle."
)
CONNECTIONS_CLOSED = MetricSpec(
    "bayard_http_connections_closed_total",
    "counter",
    ("why",),
    "Connections that the bound on their number cost: evicted while idle, or refused because all were busy.",
)
UPTIME = MetricSpec("bayard_uptime_seconds", "gauge", (), "Since the daemon was ready.")

# kept by the daemon as requests pass
OBSERVED = (
    REQUESTS,
    PROMPT_TOKENS,
    CACHED_TOKENS,
    OUTPUT_TOKENS,
    TTFT,
    INTER_TOKEN,
    REQUEST_SECONDS,
    HTTP_RESPONSES,
    UNRECORDED,
)
# read from the workers' newest statistics when somebody asks
READ_AT_SCRAPE = (
    TENANTS_WAITING,
    RUNNING,
    WAITING,
    KV_PAGES,
    STEP_AGE,
    STEPS,
    PREFIX_HITS,
    PREEMPTIONS,
    SWAPPED_PAGES,
    SWAPS,
    DEADLINES,
    SHED,
    WORKER_RSS,
    WORKER_DEVICE,
    WORKER_STATE,
    WORKER_RESTARTS,
    DRAFTS,
    OUTLIER_MISSES,
    DEVICE_MEMORY,
    DEVICE_USE,
    DEVICE_TEMPERATURE,
    DEVICE_POWER,
    DEVICE_STATE,
    GUESSES,
    CERTIFICATE,
    DAEMON_RSS,
    DAEMON_FDS,
    CONNECTIONS,
    CONNECTIONS_CLOSED,
    EVENTS_UNSTORED,
    UPTIME,
)
EVERY = OBSERVED + READ_AT_SCRAPE
