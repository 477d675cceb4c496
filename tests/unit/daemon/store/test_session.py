"""The store: one writer in order, readers that cannot write, errors that say what to do."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime

import pytest
from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from daemon.settings import Settings
from daemon.store.base import utc_now
from daemon.store.schema import Limit, Setting, Tenant
from daemon.store.session import Store
from engine.errors import Conflict, StoreError


def put(key: str) -> Setting:
    return Setting(key=key, value_json="1", updated_at=utc_now(), updated_by="test")


def keys(session: Session) -> list[str]:
    return list(session.scalars(select(Setting.key).order_by(Setting.updated_at)))


async def test_writes_keep_the_order_of_their_calls(store: Store) -> None:
    seen: list[int] = []
    await asyncio.gather(*(store.write(lambda _session, n=n: seen.append(n)) for n in range(200)))
    assert seen == list(range(200))


async def test_write_that_raises_leaves_nothing(store: Store) -> None:
    def broken(session: Session) -> None:
        session.add(put("a"))
        session.flush()
        raise LookupError("no")

    with pytest.raises(LookupError):
        await store.write(broken)
    assert await store.read(keys) == []


async def test_every_write_runs_on_one_thread_other_than_the_callers(store: Store) -> None:
    names = {await store.write(lambda _session: threading.current_thread().name) for _ in range(5)}
    assert len(names) == 1
    assert threading.current_thread().name not in names


async def test_reader_cannot_write(store: Store) -> None:
    with pytest.raises(StoreError, match="readonly"):
        await store.read(lambda session: session.add(put("a")))
    assert await store.read(keys) == []


async def test_reader_sees_one_moment_while_the_writer_goes_on(store: Store) -> None:
    def count_twice(session: Session) -> tuple[int, int]:
        first = session.scalar(select(func.count()).select_from(Setting)) or 0
        store.write_sync(lambda other: other.add(put("late")))
        return first, session.scalar(select(func.count()).select_from(Setting)) or 0

    assert await store.read(count_twice) == (0, 0)
    assert await store.read(keys) == ["late"]


async def test_row_does_not_leave_the_store(store: Store) -> None:
    await store.write(lambda session: session.add(put("a")))
    for leak in (lambda s: s.get(Setting, "a"), lambda s: list(s.scalars(select(Setting)))):
        with pytest.raises(TypeError, match="a row of settings left the store"):
            await store.read(leak)


async def test_same_name_twice_is_a_conflict(store: Store) -> None:
    def add(session: Session) -> None:
        session.add(Tenant(id=str(threading.get_native_id()), name="same", created_at=utc_now()))

    await store.write(add)
    with pytest.raises(Conflict, match="contradicts"):
        await store.write(add)


async def test_reference_to_nothing_is_a_conflict(store: Store) -> None:
    with pytest.raises(Conflict, match="FOREIGN KEY"):
        await store.write(lambda session: session.add(Limit(tenant_id="nobody", updated_at=utc_now())))


async def test_times_come_back_aware_and_naive_ones_are_refused(store: Store) -> None:
    at = datetime(2026, 3, 29, 1, 30, tzinfo=UTC)
    await store.write(lambda session: session.add(Tenant(id="t", name="n", created_at=at)))
    assert await store.read(lambda session: session.scalar(select(Tenant.created_at))) == at
    naive = datetime(2026, 1, 1)
    with pytest.raises(Exception, match="naive time"):
        await store.write(lambda session: session.add(Tenant(id="u", name="m", created_at=naive)))


async def test_closed_store_refuses_and_accepted_writes_are_kept(store: Store, settings: object) -> None:
    futures = [store.enqueue(lambda session, n=n: session.add(put(f"k{n}"))) for n in range(50)]
    await asyncio.to_thread(store.close)
    assert all(future.done() and future.exception() is None for future in futures)
    with pytest.raises(StoreError, match="closed"):
        await store.write(lambda session: None)
    with pytest.raises(StoreError, match="closed"):
        await store.read(keys)


def test_sync_twins_work_without_a_loop(store: Store) -> None:
    store.write_sync(lambda session: session.add(put("a")))
    assert store.read_sync(keys) == ["a"]


def test_journal_is_write_ahead_and_references_are_checked(store: Store) -> None:
    assert store.read_sync(lambda session: session.execute(text("PRAGMA journal_mode")).scalar()) == "wal"
    assert store.write_sync(lambda session: session.execute(text("PRAGMA foreign_keys")).scalar()) == 1


def test_database_is_its_owners_alone(store: Store, settings: Settings) -> None:
    beside = [path for path in settings.state_dir.iterdir() if path.name.startswith("bayard.db")]
    assert len(beside) >= 2  # with its journal
    assert {path.stat().st_mode & 0o777 for path in beside} == {0o600}
