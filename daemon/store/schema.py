"""Every table. A change here needs a migration beside it; a test compares the two.

Text columns that end in `_json` hold JSON written and read by the owning package; the store does not look inside.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Index, Integer, Text, text
from sqlalchemy.orm import Mapped, mapped_column

from daemon.store.base import Base

BIG = BigInteger().with_variant(Integer, "sqlite")  # SQLite numbers rows by itself only in an INTEGER key


class Model(Base):
    """Owner: daemon.models. state: ready, damaged; a model that is being imported has no row yet."""

    __tablename__ = "models"

    id: Mapped[int] = mapped_column(BIG, primary_key=True)
    name: Mapped[str] = mapped_column(Text, unique=True)
    state: Mapped[str] = mapped_column(Text)
    format: Mapped[str] = mapped_column(Text)
    architecture: Mapped[str] = mapped_column(Text)
    path: Mapped[str] = mapped_column(Text)
    linked: Mapped[bool] = mapped_column(server_default=text("false"))
    num_parameters: Mapped[int] = mapped_column(BigInteger)
    weight_bytes: Mapped[int] = mapped_column(BigInteger)
    max_context_tokens: Mapped[int] = mapped_column(BigInteger)
    source_dtype: Mapped[str] = mapped_column(Text)
    licence: Mapped[str | None] = mapped_column(Text)
    details_json: Mapped[str] = mapped_column(Text, server_default="{}")
    imported_at: Mapped[datetime]
    verified_at: Mapped[datetime | None]


class ModelFile(Base):
    """Owner: daemon.models. One file of a model with its digest; path is relative to the model's."""

    __tablename__ = "model_files"

    id: Mapped[int] = mapped_column(BIG, primary_key=True)
    model_id: Mapped[int] = mapped_column(BIG, ForeignKey("models.id", ondelete="CASCADE"), index=True)
    path: Mapped[str] = mapped_column(Text)
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str] = mapped_column(Text)


class ModelAlias(Base):
    """Owner: daemon.models. Another name that a model answers to."""

    __tablename__ = "model_aliases"

    alias: Mapped[str] = mapped_column(Text, primary_key=True)
    model: Mapped[str] = mapped_column(Text, index=True)
    created_at: Mapped[datetime]


class Plan(Base):
    """Owner: daemon.strategy. A named, saved outcome of the planner. origin: auto, operator."""

    __tablename__ = "plans"

    name: Mapped[str] = mapped_column(Text, primary_key=True)
    strategy: Mapped[str] = mapped_column(Text)
    origin: Mapped[str] = mapped_column(Text)
    profiles_json: Mapped[str] = mapped_column(Text)
    notes: Mapped[str] = mapped_column(Text, server_default=text("''"))
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]


class Measurement(Base):
    """Owner: daemon.planning. What a profile really used, or what this machine really does."""

    __tablename__ = "measurements"
    __table_args__ = (Index("ix_measurements_kind_subject", "kind", "subject"),)

    id: Mapped[int] = mapped_column(BIG, primary_key=True)
    at: Mapped[datetime]
    kind: Mapped[str] = mapped_column(Text)
    subject: Mapped[str] = mapped_column(Text)
    profile_json: Mapped[str] = mapped_column(Text, server_default="{}")
    predicted: Mapped[float | None]
    measured: Mapped[float]
    unit: Mapped[str] = mapped_column(Text)


class WorkerRun(Base):
    """Owner: daemon.workers. One start of one worker, from spawn to exit."""

    __tablename__ = "workers_history"

    id: Mapped[int] = mapped_column(BIG, primary_key=True)
    worker: Mapped[str] = mapped_column(Text, index=True)
    model: Mapped[str] = mapped_column(Text)
    pid: Mapped[int | None]
    started_at: Mapped[datetime]
    ready_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
    exit_status: Mapped[int | None]
    exit_signal: Mapped[int | None]
    reason: Mapped[str] = mapped_column(Text, server_default=text("''"))
    peak_rss_bytes: Mapped[int | None] = mapped_column(BigInteger)


class Tenant(Base):
    """Owner: daemon.tenants. state: active, suspended. A lower priority runs first."""

    __tablename__ = "tenants"

    id: Mapped[str] = mapped_column(Text, primary_key=True)
    name: Mapped[str] = mapped_column(Text, unique=True)
    state: Mapped[str] = mapped_column(Text, server_default="active")
    priority: Mapped[int] = mapped_column(server_default=text("0"))
    created_at: Mapped[datetime]


class ApiKey(Base):
    """Owner: daemon.tenants. Digest and prefix of a key, never the key. replaced_by: id of its successor."""

    __tablename__ = "api_keys"

    id: Mapped[str] = mapped_column(Text, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(Text, ForeignKey("tenants.id", ondelete="CASCADE"), index=True)
    name: Mapped[str] = mapped_column(Text, server_default=text("''"))
    prefix: Mapped[str] = mapped_column(Text)
    digest: Mapped[str] = mapped_column(Text, unique=True)
    role: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]
    replaced_by: Mapped[str | None] = mapped_column(Text)


class Limit(Base):
    """Owner: daemon.tenants. None is unlimited. models_json: the allow-list, or null for every model."""

    __tablename__ = "limits"

    tenant_id: Mapped[str] = mapped_column(Text, ForeignKey("tenants.id", ondelete="CASCADE"), primary_key=True)
    max_concurrency: Mapped[int | None]
    max_queue: Mapped[int | None]
    requests_per_minute: Mapped[int | None]
    request_burst: Mapped[int | None]
    tokens_per_minute: Mapped[int | None] = mapped_column(BigInteger)
    token_burst: Mapped[int | None] = mapped_column(BigInteger)
    tokens_per_day: Mapped[int | None] = mapped_column(BigInteger)
    tokens_per_month: Mapped[int | None] = mapped_column(BigInteger)
    max_context_tokens: Mapped[int | None] = mapped_column(BigInteger)
    max_output_tokens: Mapped[int | None] = mapped_column(BigInteger)
    share: Mapped[float | None]
    models_json: Mapped[str | None] = mapped_column(Text)
    updated_at: Mapped[datetime]


class UsageMinute(Base):
    """Owner: daemon.tenants. Sums of one minute; no foreign keys, as usage outlives keys and models."""

    __tablename__ = "usage_minutes"

    minute_at: Mapped[datetime] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(Text, primary_key=True)
    key_id: Mapped[str] = mapped_column(Text, primary_key=True)
    model: Mapped[str] = mapped_column(Text, primary_key=True)
    requests: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    errors: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    prompt_tokens: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    cached_tokens: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    output_tokens: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    device_s: Mapped[float] = mapped_column(server_default=text("0"))


class ScheduleRule(Base):
    """Owner: daemon.strategy. Cron start + duration + plan; timezone empty is the setting's."""

    __tablename__ = "schedule_rules"
    __table_args__ = (CheckConstraint("duration_s > 0", name="duration_positive"),)

    id: Mapped[int] = mapped_column(BIG, primary_key=True)
    name: Mapped[str] = mapped_column(Text, unique=True)
    cron: Mapped[str] = mapped_column(Text)
    duration_s: Mapped[int]
    plan: Mapped[str] = mapped_column(Text, ForeignKey("plans.name", ondelete="RESTRICT"), index=True)
    timezone: Mapped[str] = mapped_column(Text, server_default=text("''"))
    enabled: Mapped[bool] = mapped_column(server_default=text("true"))
    exceptions_json: Mapped[str] = mapped_column(Text, server_default=text("'[]'"))
    created_at: Mapped[datetime]


class ScheduleOverride(Base):
    """Owner: daemon.strategy. An operator's choice above the rules; ends_at None lasts until cleared."""

    __tablename__ = "schedule_overrides"

    id: Mapped[int] = mapped_column(BIG, primary_key=True)
    plan: Mapped[str] = mapped_column(Text, ForeignKey("plans.name", ondelete="CASCADE"), index=True)
    starts_at: Mapped[datetime]
    ends_at: Mapped[datetime | None]
    reason: Mapped[str] = mapped_column(Text, server_default=text("''"))
    created_by: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime]


class Setting(Base):
    """Values that the running daemon keeps for itself (active plan, calibration, ...), by key."""

    __tablename__ = "settings"

    key: Mapped[str] = mapped_column(Text, primary_key=True)
    value_json: Mapped[str] = mapped_column(Text)
    updated_at: Mapped[datetime]
    updated_by: Mapped[str] = mapped_column(Text)


class MarkRow(Base):
    """Owner: daemon.store.marks. kind: drained, acknowledged; what an operator said until further notice."""

    __tablename__ = "marks"

    kind: Mapped[str] = mapped_column(Text, primary_key=True)
    subject: Mapped[str] = mapped_column(Text, primary_key=True)
    reason: Mapped[str] = mapped_column(Text)
    made_by: Mapped[str] = mapped_column(Text)
    made_at: Mapped[datetime]


class StoredResponse(Base):
    """Owner: daemon.responses. One answer of /v1/responses with what was new in its input."""

    __tablename__ = "stored_responses"

    id: Mapped[str] = mapped_column(Text, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(Text, ForeignKey("tenants.id", ondelete="CASCADE"), index=True)
    previous_id: Mapped[str | None] = mapped_column(Text)
    input_json: Mapped[str] = mapped_column(Text)
    response_json: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(index=True)


class UploadedFile(Base):
    """Owner: daemon.batches. What a client uploaded or a batch wrote; the content lies in the state folder."""

    __tablename__ = "files"

    id: Mapped[str] = mapped_column(Text, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(Text, ForeignKey("tenants.id", ondelete="CASCADE"), index=True)
    purpose: Mapped[str] = mapped_column(Text)
    filename: Mapped[str] = mapped_column(Text)
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime]


class Batch(Base):
    """Owner: daemon.batches. moments_json: when it entered each state."""

    __tablename__ = "batches"

    id: Mapped[str] = mapped_column(Text, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(Text, ForeignKey("tenants.id", ondelete="CASCADE"), index=True)
    key_id: Mapped[str] = mapped_column(Text)
    endpoint: Mapped[str] = mapped_column(Text)
    input_file_id: Mapped[str] = mapped_column(Text)
    output_file_id: Mapped[str | None] = mapped_column(Text)
    error_file_id: Mapped[str | None] = mapped_column(Text)
    completion_window: Mapped[str] = mapped_column(Text)
    state: Mapped[str] = mapped_column(Text, index=True)
    total: Mapped[int] = mapped_column(server_default=text("0"))
    completed: Mapped[int] = mapped_column(server_default=text("0"))
    failed: Mapped[int] = mapped_column(server_default=text("0"))
    errors_json: Mapped[str] = mapped_column(Text, server_default="[]")
    metadata_json: Mapped[str] = mapped_column(Text, server_default="{}")
    moments_json: Mapped[str] = mapped_column(Text, server_default="{}")
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime]


class EventRow(Base):
    """Owner: daemon.events. Every change of state, once."""

    __tablename__ = "events"

    id: Mapped[int] = mapped_column(BIG, primary_key=True)
    at: Mapped[datetime] = mapped_column(index=True)
    kind: Mapped[str] = mapped_column(Text)
    subject: Mapped[str] = mapped_column(Text)
    from_state: Mapped[str | None] = mapped_column(Text)
    to_state: Mapped[str | None] = mapped_column(Text)
    reason: Mapped[str] = mapped_column(Text, server_default=text("''"))
    fields_json: Mapped[str] = mapped_column(Text, server_default="{}")


class AuditEntry(Base):
    """Owner: daemon.tenants.audit. Append-only by trigger; each hash covers the one before."""

    __tablename__ = "audit"

    id: Mapped[int] = mapped_column(BIG, primary_key=True)
    at: Mapped[datetime]
    actor: Mapped[str] = mapped_column(Text)
    origin: Mapped[str] = mapped_column(Text)
    action: Mapped[str] = mapped_column(Text)
    subject: Mapped[str] = mapped_column(Text)
    before_json: Mapped[str | None] = mapped_column(Text)
    after_json: Mapped[str | None] = mapped_column(Text)
    previous_hash: Mapped[str] = mapped_column(Text)
    hash: Mapped[str] = mapped_column(Text, unique=True)
