"""What the admin API answers, as far as the console reads it; None is unknown. Fields it does not know are ignored."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import Struct


class Page(Struct, frozen=True):
    """Base of every list answer."""

    as_of: datetime


class Status(Page, frozen=True):
    hostname: str
    version: str
    state: str  # starting, serving, degraded, draining, stopping
    reasons: list[str] = []  # why it is not plainly serving
    plan: str | None = None
    workers_ready: int = 0
    workers_wanted: int = 0
    requests_running: int | None = None
    requests_waiting: int | None = None
    started_at: datetime | None = None


class WhoAmI(Struct, frozen=True):
    name: str
    role: str


class Host(Page, frozen=True):
    cpu_model: str | None = None
    cpus: int | None = None
    memory_total_bytes: int | None = None
    memory_available_bytes: int | None = None
    cpu_used: float | None = None  # fraction of 1
    uptime_s: float | None = None
    disk_total_bytes: int | None = None
    disk_free_bytes: int | None = None


class Transition(Struct, frozen=True):
    """An event: something went from one state to another, for a reason."""

    id: int
    at: datetime
    kind: str
    subject: str
    from_state: str | None = None
    to_state: str | None = None
    reason: str = ""


class Events(Page, frozen=True):
    items: list[Transition]


class Worker(Struct, frozen=True):
    id: str
    model: str
    wanted: bool
    state: str
    since: datetime
    reason: str = ""
    fix: str = ""
    pid: int | None = None
    device: str | None = None
    requests_running: int | None = None
    requests_waiting: int | None = None
    step_age_s: float | None = None
    restarts_24h: int | None = None
    retry_in_s: float | None = None
    memory_bytes: int | None = None
    memory_planned_bytes: int | None = None
    last_exit: str | None = None
    log_tail: list[str] = []  # of the last start that failed
    log_path: str = ""
    load_stage: str | None = None
    load_done_bytes: int | None = None
    load_total_bytes: int | None = None
    kernels: dict[str, str] = {}
    notes: list[str] = []
    knobs: dict[str, Any] = {}


class Workers(Page, frozen=True):
    items: list[Worker]


class Model(Struct, frozen=True):
    name: str
    state: str
    format: str
    architecture: str
    weight_bytes: int
    max_context_tokens: int
    num_parameters: int
    source_dtype: str
    verified_at: datetime | None = None
    served: bool = False
    plans: list[str] = []


class Models(Page, frozen=True):
    items: list[Model]


class MemoryPart(Struct, frozen=True):
    name: str
    size_bytes: int


class PlannedModel(Struct, frozen=True):
    """What a plan chose for one model, with a sentence of reason for each choice."""

    model: str
    device: str | None = None
    memory_bytes: int | None = None
    memory_parts: list[MemoryPart] = []
    context_tokens: int | None = None
    kv_tokens: int | None = None
    decode_tok_s: float | None = None
    batch_tok_s: float | None = None
    first_token_s: float | None = None
    reasons: list[str] = []


class Plan(Struct, frozen=True):
    name: str
    strategy: str
    active: bool
    models: list[PlannedModel] = []
    notes: str = ""


class Plans(Page, frozen=True):
    items: list[Plan]


class Accelerator(Struct, frozen=True):
    id: str
    vendor: str
    state: str
    name: str | None = None
    reason: str = ""
    fix: str = ""
    utilisation_percent: float | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    ecc_uncorrected: int | None = None


class Accelerators(Page, frozen=True):
    items: list[Accelerator]


class Summary(Page, frozen=True):
    """Of the last window_s seconds."""

    window_s: float
    requests_done: int | None = None
    requests_failed: int | None = None
    requests_rejected: int | None = None
    prompt_tok_s: float | None = None
    output_tok_s: float | None = None
    ttft_p50_s: float | None = None
    ttft_p95_s: float | None = None
    itl_p50_s: float | None = None
    itl_p95_s: float | None = None
    kv_pages_used: int | None = None
    kv_pages_cached: int | None = None
    kv_pages_total: int | None = None
    prefix_hit_ratio: float | None = None


class Span(Struct, frozen=True):
    """A stretch of the day under one plan."""

    plan: str | None
    starts_at: datetime
    ends_at: datetime
    reason: str = ""


class Timeline(Page, frozen=True):
    items: list[Span]
