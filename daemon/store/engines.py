"""Database connections: how SQLite is opened for the writer and for readers, and what its errors mean."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, NoSuchModuleError
from sqlalchemy.pool import QueuePool

from daemon.settings import Settings
from engine.errors import BayardError, ConfigError, Conflict, StoreError

BUSY_TIMEOUT_MS = 10_000


def database_url(settings: Settings) -> str:
    return settings.database_url.get_secret_value() or f"sqlite:///{settings.database_file}"


def is_sqlite(url: str) -> bool:
    return url.startswith("sqlite")


def check_url(url: str) -> None:
    """Raises: ConfigError for a URL that names no usable driver."""
    try:
        make_url(url).get_dialect().import_dbapi()
    except (ArgumentError, NoSuchModuleError, ImportError, ValueError) as error:
        raise ConfigError(f"database_url cannot be used: {error}.", "Empty means SQLite in state_dir.") from error


def make_engine(url: str, *, writer: bool, pool_size: int) -> Engine:
    """Connections that start their transactions where SQLAlchemy says so, not where the driver likes."""
    if not is_sqlite(url):
        return create_engine(url, pool_size=pool_size, pool_pre_ping=True, hide_parameters=True)
    engine = create_engine(
        url,
        poolclass=QueuePool,
        pool_size=pool_size,
        max_overflow=0,
        hide_parameters=True,
        # the driver's own transactions are switched off (None): it would start them late and around no DDL
        connect_args={"isolation_level": None, "check_same_thread": False, "timeout": BUSY_TIMEOUT_MS / 1000},
    )

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _record: Any) -> None:
        cursor = connection.cursor()
        cursor.execute("PRAGMA foreign_keys=ON")
        if writer:
            cursor.execute("PRAGMA journal_mode=WAL")
            cursor.execute("PRAGMA synchronous=FULL")  # a settled audit entry survives a power cut
            cursor.execute("PRAGMA journal_size_limit=16777216")
        else:
            cursor.execute("PRAGMA query_only=ON")
        cursor.close()

    @event.listens_for(engine, "begin")
    def begin(connection: Any) -> None:
        # IMMEDIATE: a deferred transaction that turns into a writer can fail where waiting would have done
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writer else "BEGIN")

    return engine


def shown_url(url: str) -> str:
    return make_url(url).render_as_string(hide_password=True)


def store_error(error: DBAPIError) -> BayardError:
    """What a driver's error means to an operator."""
    text = str(error.orig or error)
    if isinstance(error, IntegrityError):
        return Conflict(f"the change contradicts what is stored: {text}.", "Look at the present state and try again.")
    lowered = text.lower()
    if "readonly" in lowered or "read-only" in lowered:
        return StoreError(f"the database cannot be written: {text}.", "Check the owner and mode of state_dir.")
    if "full" in lowered:
        return StoreError(f"the database could not grow: {text}.", "Free space on the disk of state_dir.")
    if "locked" in lowered or "busy" in lowered:
        return StoreError(
            f"the database stayed locked for {BUSY_TIMEOUT_MS / 1000:.0f} s: {text}.", "End what else uses it."
        )
    return StoreError(
        f"the database failed: {text}.", "See `bayard doctor`, and the last back-up in state_dir/backups."
    )
