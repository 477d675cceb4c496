"""The audit chain: whole as written, and broken exactly where somebody touched it."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from daemon.store.session import Store
from daemon.tenants import audit
from daemon.tenants.principal import Actor
from engine.errors import StoreError


def fill(store: Store, count: int) -> None:
    for number in range(count):
        store.write_sync(
            lambda session, number=number: audit.append(
                session, Actor("ops", "command"), "thing.change", f"thing:{number}", after={"n": number, "name": "ü"}
            )
        )


def test_chain_as_written_is_whole(store: Store) -> None:
    check = store.read_sync(audit.verify)
    assert (check.entries, check.broken_at) == (0, None)
    fill(store, 5)
    check = store.read_sync(audit.verify)
    assert (check.entries, check.broken_at) == (5, None)


def test_log_refuses_update_and_delete(store: Store) -> None:
    fill(store, 2)
    for statement in ("UPDATE audit SET actor = 'x'", "DELETE FROM audit"):
        with pytest.raises(StoreError):
            store.write_sync(lambda session, statement=statement: session.execute(text(statement)) and None)
    assert store.read_sync(audit.verify).broken_at is None


@pytest.mark.parametrize("touch", ["UPDATE audit SET after_json = '{}' WHERE id = 3", "DELETE FROM audit WHERE id = 2"])
def test_chain_breaks_where_it_was_touched(store: Store, touch: str) -> None:
    fill(store, 5)

    def tamper(session):  # type: ignore[no-untyped-def]
        for (name,) in session.execute(text("SELECT name FROM sqlite_master WHERE type = 'trigger'")).all():
            session.execute(text(f'DROP TRIGGER "{name}"'))
        session.execute(text(touch))

    store.write_sync(tamper)
    assert store.read_sync(audit.verify).broken_at == 3


def test_hash_kept_elsewhere_tells_that_the_end_was_cut_off(store: Store) -> None:
    fill(store, 5)
    kept = store.read_sync(audit.verify).head
    assert store.read_sync(lambda session: audit.verify(session, kept)).has_kept is True
    assert store.read_sync(audit.verify).has_kept is None

    def cut(session):  # type: ignore[no-untyped-def]
        for (name,) in session.execute(text("SELECT name FROM sqlite_master WHERE type = 'trigger'")).all():
            session.execute(text(f'DROP TRIGGER "{name}"'))
        session.execute(text("DELETE FROM audit WHERE id > 3"))

    store.write_sync(cut)
    check = store.read_sync(lambda session: audit.verify(session, kept))
    assert (check.broken_at, check.has_kept) == (None, False)


def test_pages_run_from_newest_to_oldest(store: Store) -> None:
    fill(store, 5)
    first = store.read_sync(lambda session: audit.page(session, limit=2))
    rest = store.read_sync(lambda session: audit.page(session, before_id=first[-1].id))
    assert [record.subject for record in (*first, *rest)] == [f"thing:{number}" for number in (4, 3, 2, 1, 0)]
