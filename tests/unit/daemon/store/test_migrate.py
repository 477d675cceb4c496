"""Migrations: complete, all or nothing, backed up, never backwards."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine

import migrations
from daemon.settings import Settings
from daemon.store import schema
from daemon.store.base import Base
from daemon.store.migrate import HEAD, bring_up_to_date
from daemon.store.session import Store
from engine.errors import ConfigError, MigrationFailed
from migrations.index import REVISIONS

VERSIONS = Path(migrations.__file__).parent / "versions"


@pytest.fixture
def url(settings: Settings) -> str:
    settings.state_dir.mkdir(exist_ok=True)
    return f"sqlite:///{settings.database_file}"


def rows(path: Path, sql: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


def change(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        for sql in statements:
            connection.execute(sql)


@contextmanager
def extra_migration(monkeypatch: pytest.MonkeyPatch, body: str) -> Iterator[str]:
    """One more revision than this version has, as a later version would bring, in a copy that no other test sees."""
    revision = "9999_of_the_test"
    with tempfile.TemporaryDirectory() as folder, monkeypatch.context() as patch:
        copy = shutil.copytree(VERSIONS.parent, Path(folder) / "migrations")
        (copy / "versions" / "2999_01_01_9999_of_the_test.py").write_text(
            "import sqlalchemy as sa\nfrom alembic import op\n"
            f"revision = {revision!r}\ndown_revision = {HEAD!r}\nbranch_labels = None\ndepends_on = None\n"
            f"def upgrade():\n    {body}\n"
        )
        patch.setattr(migrations, "__file__", str(copy / "__init__.py"))
        patch.setattr("daemon.store.migrate.REVISIONS", (*REVISIONS, revision))
        yield revision


def test_migrated_schema_equals_the_tables(settings: Settings, url: str) -> None:
    bring_up_to_date(url, settings.state_dir)
    engine = create_engine(url)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, Base.metadata) == []
    engine.dispose()
    assert set(Base.metadata.tables) >= {schema.AuditEntry.__tablename__, schema.Model.__tablename__}


def test_index_lists_every_revision_in_order() -> None:
    scripts = ScriptDirectory(str(Path(migrations.__file__).parent))
    assert tuple(script.revision for script in reversed(list(scripts.walk_revisions()))) == REVISIONS


def test_migration_files_import_nothing_of_bayard() -> None:
    for path in VERSIONS.glob("*.py"):
        text = path.read_text()
        assert "import daemon" not in text, path.name
        assert "from daemon" not in text, path.name
        spec = importlib.util.spec_from_file_location("migration", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for line in ("Why:", "Existing rows:", "Cost at a million rows:", "A downgrade loses:"):
            assert line in (module.__doc__ or ""), (path.name, line)


def test_empty_database_is_filled_without_a_backup(settings: Settings, url: str) -> None:
    bring_up_to_date(url, settings.state_dir)
    assert rows(settings.database_file, "SELECT version_num FROM alembic_version") == [(HEAD,)]
    assert not (settings.state_dir / "backups").exists()


def test_second_start_changes_nothing(settings: Settings, url: str) -> None:
    bring_up_to_date(url, settings.state_dir)
    before = settings.database_file.read_bytes()
    bring_up_to_date(url, settings.state_dir)
    assert settings.database_file.read_bytes() == before


def test_upgrade_of_a_filled_database_keeps_a_copy_and_its_rows(
    settings: Settings, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bring_up_to_date(url, settings.state_dir)
    change(settings.database_file, "INSERT INTO tenants (id, name, created_at) VALUES ('t', 'T', '2026-01-01')")
    with extra_migration(monkeypatch, "op.add_column('tenants', sa.Column('note', sa.Text()))") as revision:
        bring_up_to_date(url, settings.state_dir, target=revision)
    assert rows(settings.database_file, "SELECT id, note FROM tenants") == [("t", None)]
    (copy,) = (settings.state_dir / "backups").glob("*.db")
    assert rows(copy, "SELECT version_num FROM alembic_version") == [(HEAD,)]
    assert rows(copy, "SELECT id FROM tenants") == [("t",)]
    assert copy.stat().st_mode & 0o077 == 0


def test_rebuilding_a_parent_table_keeps_the_rows_that_cascade_from_it(
    settings: Settings, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bring_up_to_date(url, settings.state_dir)
    change(
        settings.database_file,
        "INSERT INTO tenants (id, name, created_at) VALUES ('t', 'T', '2026-01-01')",
        "INSERT INTO api_keys (id, tenant_id, prefix, digest, role, created_at)"
        " VALUES ('k', 't', 'bk_', 'd', 'inference', '2026-01-01')",
    )
    body = (
        "with op.batch_alter_table('tenants', recreate='always') as batch:\n"
        "        batch.add_column(sa.Column('note', sa.Text()))"
    )
    with extra_migration(monkeypatch, body) as revision:
        bring_up_to_date(url, settings.state_dir, target=revision)
    assert rows(settings.database_file, "SELECT id FROM api_keys") == [("k",)]


def test_failed_migration_is_undone_whole(settings: Settings, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bring_up_to_date(url, settings.state_dir)
    body = "op.create_table('half', sa.Column('x', sa.Text())); op.execute('SELECT * FROM no_such_table')"
    with (
        extra_migration(monkeypatch, body) as revision,
        pytest.raises(MigrationFailed, match=f"from {HEAD} to {revision} failed and was undone") as caught,
    ):
        bring_up_to_date(url, settings.state_dir, target=revision)
    assert "backups" in caught.value.hint
    assert rows(settings.database_file, "SELECT name FROM sqlite_master WHERE name = 'half'") == []
    assert rows(settings.database_file, "SELECT version_num FROM alembic_version") == [(HEAD,)]


def test_migration_that_breaks_a_reference_is_undone(
    settings: Settings, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bring_up_to_date(url, settings.state_dir)
    body = "op.execute(\"INSERT INTO model_files (model_id, path, size_bytes, sha256) VALUES (77, 'p', 1, 's')\")"
    with (
        extra_migration(monkeypatch, body) as revision,
        pytest.raises(MigrationFailed, match="1 rows would lose what they refer to, first in table model_files"),
    ):
        bring_up_to_date(url, settings.state_dir, target=revision)
    assert rows(settings.database_file, "SELECT * FROM model_files") == []


def test_database_of_a_newer_version_is_refused_naming_both(settings: Settings, url: str) -> None:
    bring_up_to_date(url, settings.state_dir)
    change(settings.database_file, "UPDATE alembic_version SET version_num = '0042_from_the_future'")
    before = settings.database_file.read_bytes()
    with pytest.raises(MigrationFailed, match="0042_from_the_future") as caught:
        Store.open(settings)
    assert HEAD in caught.value.message
    assert caught.value.exit_code == 78
    assert settings.database_file.read_bytes() == before


def test_database_of_somebody_else_is_refused(settings: Settings, url: str) -> None:
    change(settings.database_file, "CREATE TABLE recipes (x)")
    with pytest.raises(MigrationFailed, match="1 tables that are not Bayard's"):
        bring_up_to_date(url, settings.state_dir)


def test_damaged_database_is_refused(settings: Settings, url: str) -> None:
    settings.database_file.write_bytes(b"this is no database at all" * 100)
    with pytest.raises(MigrationFailed, match="is damaged"):
        bring_up_to_date(url, settings.state_dir)


def test_state_folder_that_is_missing_is_a_matter_of_configuration(settings: Settings) -> None:
    gone = settings.state_dir / "gone"
    with pytest.raises(ConfigError, match="cannot be opened"):
        bring_up_to_date(f"sqlite:///{gone}/bayard.db", gone)


def test_audit_rows_cannot_be_changed_or_removed(settings: Settings, url: str) -> None:
    bring_up_to_date(url, settings.state_dir)
    change(
        settings.database_file,
        "INSERT INTO audit (at, actor, origin, action, subject, previous_hash, hash)"
        " VALUES ('2026-01-01', 'a', 'o', 'x', 's', '', 'h')",
    )
    for sql in ("UPDATE audit SET actor = 'b'", "DELETE FROM audit"):
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            change(settings.database_file, sql)


def test_unusable_database_url_is_refused(settings: Settings) -> None:
    for url in ("nonsense", "unknowndb://x/y"):
        with pytest.raises(ConfigError, match="database_url cannot be used"):
            bring_up_to_date(url, settings.state_dir)


@pytest.mark.skipif(not os.path.ismount("/proc"), reason="needs /proc")
def test_nothing_stays_open(settings: Settings) -> None:
    Store.open(settings).close()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        Store.open(settings).close()
    assert len(os.listdir("/proc/self/fd")) == before
