"""The event log: ids without gaps, stored behind, live for subscribers."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from sqlalchemy import text

from daemon.events import SUBSCRIBER_QUEUE, EventLog
from daemon.store.session import Store


def stored(store: Store) -> list[tuple[Any, ...]]:
    store.write_sync(lambda session: None)  # after the writes before it
    return store.read_sync(
        lambda session: [
            tuple(row) for row in session.execute(text("SELECT id, subject, reason FROM events ORDER BY id"))
        ]
    )


def test_event_is_stored_as_published(store: Store) -> None:
    log = EventLog(store)
    event = log.publish("worker", "w", "ready", "lost", "killed", signal=9)
    assert (event.id, event.fields) == (1, {"signal": 9})
    assert stored(store) == [(1, "w", "killed")]
    assert log.recent() == [event]


def test_ids_go_on_after_a_restart(store: Store) -> None:
    first = EventLog(store)
    for number in range(5):
        first.publish("worker", f"w{number}")
    stored(store)
    second = EventLog(store)
    assert [event.subject for event in second.recent()] == [f"w{n}" for n in range(5)]
    assert second.publish("worker", "next").id == 6


def test_recent_resumes_after_an_id_and_is_bounded(store: Store) -> None:
    log = EventLog(store)
    for number in range(10):
        log.publish("worker", f"w{number}")
    assert [event.id for event in log.recent(after_id=7)] == [8, 9, 10]
    assert [event.id for event in log.recent(limit=2)] == [9, 10]


def test_publishing_from_many_threads_keeps_every_event(store: Store) -> None:
    log = EventLog(store)

    def work(number: int) -> None:
        for _ in range(50):
            log.publish("worker", f"w{number}")

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [row[0] for row in stored(store)] == list(range(1, 401))


async def test_subscriber_gets_backlog_then_live_then_the_end(store: Store) -> None:
    log = EventLog(store)
    log.publish("worker", "old")
    log.publish("worker", "missed")
    seen = []
    with log.subscription(after_id=1) as events:
        log.publish("worker", "live")
        await asyncio.to_thread(log.publish, "worker", "from a thread")
        log.close()
        async for event in events:
            seen.append(event.subject)
    assert seen == ["missed", "live", "from a thread"]


async def test_subscriber_that_reads_too_slowly_is_ended(store: Store) -> None:
    log = EventLog(store)
    with log.subscription() as events:
        for number in range(SUBSCRIBER_QUEUE + 5):
            log.publish("worker", f"w{number}")
        await asyncio.sleep(0.05)
        seen = [event async for event in events]
    assert 0 < len(seen) <= SUBSCRIBER_QUEUE


async def test_left_subscription_costs_nothing(store: Store) -> None:
    log = EventLog(store)
    for _ in range(10):
        with log.subscription():
            pass
    assert log._subscribers == []


def test_event_that_could_not_be_stored_is_stored_with_the_next(store: Store) -> None:
    log = EventLog(store)
    store.write_sync(lambda session: session.execute(text("ALTER TABLE events RENAME TO away")) and None)
    log.publish("worker", "kept")
    store.write_sync(lambda session: session.execute(text("ALTER TABLE away RENAME TO events")) and None)
    assert log.unwritten_failures == 1
    log.publish("worker", "next")
    assert [row[1] for row in stored(store)] == ["kept", "next"]


def test_closed_store_is_counted_not_raised(store: Store) -> None:
    log = EventLog(store)
    store.close()
    log.publish("worker", "late")
    assert log.unwritten_failures == 1


def test_value_that_is_no_json_is_refused_where_it_is_published(store: Store) -> None:
    with pytest.raises(TypeError):
        EventLog(store).publish("worker", "w", thing=object())
