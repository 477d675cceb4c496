"""Run by Alembic: every pending step in one transaction, foreign keys checked before the commit."""

from __future__ import annotations

from alembic import context
from sqlalchemy import Engine

from daemon.store.base import Base
from engine.errors import MigrationFailed


def run() -> None:
    engine: Engine = context.config.attributes["engine"]
    with engine.connect().execution_options(migrating=True) as connection, connection.begin():
        # configured inside the transaction: Alembic takes SQLite for one without transactional DDL, and would
        # otherwise commit after each step
        context.configure(connection=connection, target_metadata=Base.metadata, render_as_batch=True)
        context.run_migrations()
        if connection.dialect.name == "sqlite":
            broken = connection.exec_driver_sql("PRAGMA foreign_key_check").fetchall()
            if broken:
                raise MigrationFailed(
                    f"{len(broken)} rows would lose what they refer to, first in table {broken[0][0]}."
                )


run()
