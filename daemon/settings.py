"""Settings: defaults, one TOML file, BAYARD_* environment, flags; the later wins and every value knows its source."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, SecretStr, field_validator

from daemon.batches.hours import read_hours

UNIX_PATH_MAX_BYTES = 107  # sun_path of a Linux unix socket, less its closing zero

Port = Annotated[int, Field(ge=0, le=65535)]
Seconds = Annotated[float, Field(gt=0, le=86_400)]


class Source(StrEnum):
    DEFAULT = "default"
    FILE = "file"
    ADMIN = "admin"  # changed through the admin API
    ENV = "env"
    FLAG = "flag"


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class HttpSettings(Section):
    host: str = Field(default="127.0.0.1", description="Address the OpenAI-compatible HTTP API listens on.")
    port: Port = Field(default=8080, description="Its port; 0 takes any free one.")
    max_connections: int = Field(
        default=10_000,
        ge=1,
        le=1_000_000,
        description="Most connections at once, and no more than the limit of open files leaves room for. Above it the "
        "one that has been idle longest is closed.",
    )
    keep_alive_s: float = Field(
        default=75.0, ge=1, le=3600, description="A connection without a request is closed after so long."
    )
    cors_origins: str = Field(
        default="",
        description="Origins whose web pages may call the API, separated by spaces; `*` is any, empty is none.",
    )
    metrics_key: bool = Field(
        default=False, description="Whether `/metrics` asks for a key with the role metrics, operator or admin."
    )


class GrpcSettings(Section):
    host: str = Field(default="127.0.0.1", description="Address the gRPC API listens on.")
    port: Port = Field(default=8081, description="Its port; 0 takes any free one.")
    enabled: bool = Field(default=True, description="Whether to serve gRPC at all.")
    socket: str = Field(
        default="", description="Unix socket that gRPC is served on too, for programs of this machine; empty is none."
    )
    max_message_bytes: int = Field(
        default=64 << 20, ge=1024, le=2**31 - 1, description="Largest gRPC message that is taken."
    )


class TlsSettings(Section):
    enabled: bool = Field(default=False, description="Whether HTTP and gRPC are served with TLS.")
    cert_file: str = Field(
        default="", description="The server's certificate and its chain, PEM; empty is what `bayard tls init` made."
    )
    key_file: str = Field(default="", description="Its private key, PEM; empty is what `bayard tls init` made.")
    client_certificates: Literal["none", "asked", "required"] = Field(
        default="none", description="Whether clients show certificates of their own, beside their keys."
    )
    client_ca_file: str = Field(default="", description="The authority that signs clients' certificates, PEM.")
    admin_host: str = Field(default="127.0.0.1", description="Address of the admin API's TLS port.")
    admin_port: Port | None = Field(
        default=None, description="Port of the admin API with TLS and admin keys; none by default, 0 takes a free one."
    )


class LogSettings(Section):
    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least important line written."
    )
    format: Literal["console", "json", "journal"] = Field(
        default="console",
        description="For people, one JSON object a line, or the systemd journal with every value as a field.",
    )


class WorkerSettings(Section):
    command: str = Field(
        default="",
        description="Command that starts a worker (a wrapper, say); its start-up file is appended. "
        "Empty is this installation's own engine.",
    )
    threads: int = Field(default=0, ge=0, le=4096, description="CPU threads of a worker; 0 is every core it may use.")
    start_progress_timeout_s: Seconds = Field(
        default=60.0,
        description="A starting worker that reports no progress for so long is replaced; total time is free.",
    )
    stall_after_s: Seconds = Field(
        default=4.0, description="A ready worker whose counters stand still so long is replaced."
    )
    busy_stall_after_s: Seconds = Field(
        default=60.0, description="The same for a worker that visibly computes: a long step, or a compiling kernel."
    )
    stop_grace_s: Seconds = Field(default=30.0, description="Running streams may take so long to finish when stopping.")
    latch_after: int = Field(default=5, ge=1, le=100, description="Fast exits in a row before a worker is left down.")
    fast_exit_s: Seconds = Field(
        default=60.0, description="An exit within this time of the start, or before ready, is fast."
    )
    backoff_base_s: Seconds = Field(
        default=0.5, description="Longest wait before the first restart; it doubles each time."
    )
    backoff_max_s: Seconds = Field(default=30.0, description="Longest wait before any restart.")
    cgroups: bool = Field(
        default=False,
        description="Give each worker a control group of its own; the unit then needs `Delegate=memory pids cpu` "
        "and `ProtectControlGroups=no`.",
    )
    memory_max_bytes: int = Field(
        default=0, ge=0, description="With cgroups, the most host memory of one worker; 0 sets no limit."
    )
    host_memory_bytes: int = Field(
        default=0, ge=0, description="Most host memory that plans give all workers together; 0 is all there is."
    )
    round_weights: Literal["asked", "to-fit"] = Field(
        default="asked",
        description="Whether plans may make a model less exact than its checkpoint (weights rounded at load, a KV "
        "cache of bytes): only where `--weights` or `--kv` asks for it, or also where nothing else fits.",
    )
    kv_scales: Literal["auto", "dynamic", "calibrated"] = Field(
        default="auto",
        description="What multiplies the codes of a KV cache of bytes: each head's own largest number (dynamic), the "
        "checkpoint's k_scale and v_scale (calibrated; without them a worker does not start), or those if it has them.",
    )
    calibrate_after_s: float = Field(
        default=120.0,
        ge=0.0,
        description="How long the box must have been idle before it measures itself for the first time, which ends at "
        "the first request; 0 is never.",
    )
    packed_bytes: int = Field(
        default=32 << 30,
        ge=0,
        description="Most bytes of weights kept packed for the CPU's kernels, in state_dir, so that a worker's next "
        "start maps them; 0 keeps none.",
    )
    log_bytes: int = Field(
        default=4 << 20,
        ge=4096,
        description="Bytes kept of a worker's log, and as many of each of the five starts before.",
    )


class LimitSettings(Section):
    max_queue: int = Field(
        default=256, ge=1, description="Requests waiting over all tenants; one more is answered queue_full."
    )
    max_body_bytes: int = Field(default=32 << 20, ge=1024, description="Largest request body.")
    retry_within_s: Seconds = Field(
        default=30.0,
        description="A request that a lost worker had not begun waits so long for another, or for its restart.",
    )
    model_wait_s: float = Field(
        default=120.0,
        ge=0,
        le=3600,
        description="A request for a model that is being loaded waits so long for it; 0 answers not_ready at once.",
    )
    max_choices: int = Field(default=8, ge=1, le=128, description="Largest n of one request.")
    stored_response_days: int = Field(
        default=30, ge=0, le=3650, description="Days that answers of /v1/responses are kept where their clients ask so."
    )


class BatchSettings(Section):
    hours: str = Field(
        default="idle",
        description='When batches may run: "idle" is whenever no other request is here; "22:00-06:00" is between '
        "these times in schedule.timezone, below every other request.",
    )
    parallel: int = Field(default=8, ge=1, le=1024, description="Requests of all batches that run at once.")
    max_file_bytes: int = Field(default=200 << 20, ge=1024, description="Largest uploaded file.")
    max_stored_bytes: int = Field(default=2 << 30, ge=1024, description="Files of one tenant together.")
    max_lines: int = Field(default=50_000, ge=1, description="Most requests of one batch.")
    max_open: int = Field(default=100, ge=1, description="Batches of one tenant that have not ended.")
    keep_days: int = Field(default=30, ge=1, le=3650, description="How long files and ended batches are kept.")

    @field_validator("hours")
    @classmethod
    def _known_hours(cls, value: str) -> str:
        read_hours(value)
        return value


class TracingSettings(Section):
    endpoint: str = Field(
        default="",
        description="OTLP/HTTP address that traces of requests go to, `http://host:4318/v1/traces`; empty is none. "
        "Needs the extra `bayard[tracing]`.",
    )


class RetentionSettings(Section):
    usage_days: int = Field(
        default=400, ge=32, le=36_500, description="Days that usage is kept by the minute; older minutes are deleted."
    )
    events_days: int = Field(default=90, ge=1, le=36_500, description="Days that changes of state are kept.")
    runs_days: int = Field(default=400, ge=1, le=36_500, description="Days that the history of workers is kept.")
    backups: int = Field(
        default=20,
        ge=1,
        le=1000,
        description="Copies of the state from before upgrades and restores that are kept, and bundles for support.",
    )


class ScheduleSettings(Section):
    timezone: str = Field(default="", description="IANA zone of schedule rules; empty is the machine's own.")

    @field_validator("timezone")
    @classmethod
    def _known_zone(cls, value: str) -> str:
        if value:
            try:
                ZoneInfo(value)
            except (ZoneInfoNotFoundError, ValueError, OSError) as error:
                raise ValueError(f"there is no time zone {value!r}") from error
        return value


class Settings(Section):
    """Frozen. Made by daemon.settings_load.load_settings, which also fills in the paths."""

    state_dir: Path = Field(description="Database, models, logs, back-ups.")
    run_dir: Path = Field(description="Sockets and worker start-up files.")
    admin_socket: Path = Field(description="Unix socket of the admin API.")
    database_url: SecretStr = Field(
        default=SecretStr(""), description="SQLAlchemy URL; empty is bayard.db in state_dir. May name PostgreSQL."
    )
    http: HttpSettings = HttpSettings()
    grpc: GrpcSettings = GrpcSettings()
    tls: TlsSettings = TlsSettings()
    log: LogSettings = LogSettings()
    workers: WorkerSettings = WorkerSettings()
    limits: LimitSettings = LimitSettings()
    batches: BatchSettings = BatchSettings()
    schedule: ScheduleSettings = ScheduleSettings()
    retention: RetentionSettings = RetentionSettings()
    tracing: TracingSettings = TracingSettings()

    _sources: dict[str, Source] = PrivateAttr(default_factory=dict)
    _file: Path | None = PrivateAttr(default=None)
    _flags: dict[str, Any] = PrivateAttr(default_factory=dict)

    @field_validator("state_dir", "run_dir", "admin_socket")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return value.expanduser().absolute()

    @field_validator("admin_socket")
    @classmethod
    def _fits_a_socket_address(cls, value: Path) -> Path:
        size = len(str(value).encode())
        if size > UNIX_PATH_MAX_BYTES:
            raise ValueError(f"the path has {size} bytes; a unix socket allows {UNIX_PATH_MAX_BYTES}")
        return value

    @property
    def file(self) -> Path | None:
        """The TOML file that was read; None where there was none."""
        return self._file

    @property
    def flags(self) -> dict[str, Any]:
        """What the command line gave, for reading everything again."""
        return self._flags

    @property
    def database_file(self) -> Path:
        return self.state_dir / "bayard.db"

    @property
    def models_dir(self) -> Path:
        return self.state_dir / "models"

    @property
    def files_dir(self) -> Path:
        """What clients uploaded and batches wrote."""
        return self.state_dir / "files"

    @property
    def logs_dir(self) -> Path:
        return self.state_dir / "logs"

    @property
    def kernels_dir(self) -> Path:
        """Kernels that workers compiled, for the next start."""
        return self.state_dir / "kernels"

    @property
    def packed_dir(self) -> Path:
        """Weights as the CPU's kernels read them, for the next start."""
        return self.state_dir / "packed"

    def source_of(self, key: str) -> Source:
        return self._sources.get(key, Source.DEFAULT)
