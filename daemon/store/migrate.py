"""Bringing a database to this version's schema: backed up first, all or nothing, never backwards."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import Connection, Engine, create_engine, event, inspect, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from daemon.store.engines import check_url, is_sqlite, shown_url
from daemon.store.lock import make_private_dir, unwritable
from engine.errors import BayardError, ConfigError, MigrationFailed
from migrations.index import REVISIONS

HEAD = REVISIONS[-1]


def bring_up_to_date(url: str, state_dir: Path, *, target: str = HEAD) -> None:
    """Apply what is missing.

    Blocks: for the migrations.
    Raises: ConfigError if the place cannot be written; MigrationFailed for a newer database or a failed step.
    """
    check_url(url)
    engine = _migration_engine(url)
    try:
        with engine.connect() as connection:
            current = _current_revision(connection)
        if current == target:
            _require_writable(url, state_dir)
            return
        if current is not None and current not in REVISIONS:
            raise MigrationFailed(
                f"the database is at revision {current}, which this version does not know; it knows up to {HEAD}.",
                "Install the version that wrote it, or restore a back-up from state_dir/backups.",
            )
        _require_writable(url, state_dir)
        saved = _back_up(url, state_dir, current) if current is not None else None
        _run(engine, target, current, saved)
    except BayardError:
        raise
    except DBAPIError as error:
        raise _unopenable(error, url, state_dir) from error
    finally:
        engine.dispose()


def _run(engine: Engine, target: str, current: str | None, saved: Path | None) -> None:
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    import migrations

    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    config.attributes["engine"] = engine
    try:
        command.upgrade(config, target)
    except (SQLAlchemyError, CommandError, BayardError) as error:
        reason = error.message.rstrip(".") if isinstance(error, BayardError) else error
        kept = f"A copy from before is {saved}." if saved else "Nothing was stored before."
        raise MigrationFailed(
            f"the upgrade from {current or 'an empty database'} to {target} failed and was undone: {reason}.", kept
        ) from error


def _migration_engine(url: str) -> Engine:
    """Its own connections: the driver starts no transactions, foreign keys are off before the first BEGIN.

    With foreign keys on, rebuilding a table in batch mode deletes the rows that cascade from it.
    """
    if not is_sqlite(url):
        return create_engine(url, poolclass=NullPool, hide_parameters=True)
    engine = create_engine(url, poolclass=NullPool, connect_args={"isolation_level": None, "timeout": 10})

    @event.listens_for(engine, "connect")
    def prepare(connection: sqlite3.Connection, _record: object) -> None:
        connection.execute("PRAGMA foreign_keys=OFF")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql(
            "BEGIN IMMEDIATE" if connection.get_execution_options().get("migrating") else "BEGIN"
        )

    return engine


def _current_revision(connection: Connection) -> str | None:
    """None for an empty database. Raises: MigrationFailed for a filled one that was never migrated by Bayard."""
    tables = inspect(connection).get_table_names()
    if "alembic_version" in tables:
        revision = connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one_or_none()
        if revision is not None:
            return str(revision)
        tables.remove("alembic_version")
    if tables:
        raise MigrationFailed(
            f"the database holds {len(tables)} tables that are not Bayard's ({', '.join(sorted(tables)[:3])}, ...).",
            "Give Bayard an empty database, or another state folder.",
        )
    return None


def _require_writable(url: str, state_dir: Path) -> None:
    if not is_sqlite(url):
        return
    probe = state_dir / ".writable"
    try:
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise unwritable(state_dir, error) from error


def _back_up(url: str, state_dir: Path, current: str) -> Path | None:
    """A consistent copy of a SQLite file; a server's database is its operator's to back up."""
    if not is_sqlite(url):
        return None
    folder = state_dir / "backups"
    make_private_dir(folder)
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%fZ")
    path = folder / f"before-{current}-{stamp}.db"
    source_path = url.removeprefix("sqlite:///")
    try:
        with closing(sqlite3.connect(source_path)) as source, closing(sqlite3.connect(path)) as copy:
            source.backup(copy)
        path.chmod(0o600)
    except (OSError, sqlite3.Error) as error:
        raise MigrationFailed(
            f"the copy before the upgrade could not be made: {error}.", "Nothing was changed."
        ) from error
    return path


def _unopenable(error: DBAPIError, url: str, state_dir: Path) -> BayardError:
    reason = str(error.orig or error)
    if "malformed" in reason or "not a database" in reason:
        return MigrationFailed(f"{shown_url(url)} is damaged: {reason}.", "Restore a back-up from state_dir/backups.")
    return ConfigError(
        f"the database {shown_url(url)} cannot be opened: {reason}.",
        f"Check that {state_dir} exists and is writable, and the setting database_url.",
    )
