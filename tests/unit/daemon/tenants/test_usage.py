"""Usage: summed by minute, tenant, key and model, settled soon, and never lost by a clean stop."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from daemon.store.base import utc_now
from daemon.store.session import Store
from daemon.tenants.limits import TenantLimits
from daemon.tenants.principal import Actor, Need, Principal, Role
from daemon.tenants.service import TenantService
from daemon.tenants.usage import UsageLedger, UsageRow, UsageSum, read_usage
from engine.errors import StoreError

ONE = Principal("t_1", "acme", "k_1", "bk", Role.INFERENCE, TenantLimits())


def rows(store: Store) -> list[UsageRow]:
    now = utc_now()
    return store.read_sync(lambda session: read_usage(session, now - timedelta(hours=1), now + timedelta(hours=1)))


async def test_sums_of_one_slot_meet_across_settlements(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    minute = utc_now().replace(second=30, microsecond=0)
    monkeypatch.setattr("daemon.tenants.usage.utc_now", lambda: minute)
    ledger = UsageLedger(store)
    for _ in range(2):
        ledger.add(ONE, "m", UsageSum(requests=1, prompt_tokens=10, cached_tokens=4, output_tokens=5, device_s=0.5))
        ledger.add(ONE, "m", UsageSum(requests=1, errors=1))
        ledger.add(ONE, "other", UsageSum(requests=1))
        await ledger.settle()
    found = rows(store)
    assert [(row.model, row.requests, row.errors) for row in found] == [("m", 4, 2), ("other", 2, 0)]
    assert (found[0].prompt_tokens, found[0].cached_tokens, found[0].output_tokens) == (20, 8, 10)
    assert found[0].device_s == pytest.approx(1.0)
    assert found[0].minute_at == minute.replace(second=0)


async def test_settles_by_itself_within_a_second_and_the_rest_at_stop(store: Store) -> None:
    ledger = UsageLedger(store)
    ledger.start()
    ledger.add(ONE, "m", UsageSum(requests=1))
    await asyncio.sleep(1.3)
    assert [row.requests for row in rows(store)] == [1]
    ledger.add(ONE, "m2", UsageSum(requests=1))
    await ledger.stop()
    assert sorted(row.model for row in rows(store)) == ["m", "m2"]


async def test_failed_settlement_is_kept_for_the_next(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = UsageLedger(store)
    ledger.add(ONE, "m", UsageSum(requests=1, output_tokens=7))

    async def fail(fn: Any) -> None:
        raise StoreError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(store, "write", fail)
        with pytest.raises(StoreError):
            await ledger.settle()
    ledger.add(ONE, "m", UsageSum(requests=1, output_tokens=1))
    await ledger.settle()
    assert sum(row.output_tokens for row in rows(store)) == 8


async def test_usage_beyond_the_bound_is_lost_and_told(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(fn: Any) -> None:
        raise StoreError("the disk is full")

    monkeypatch.setattr("daemon.tenants.usage.MAX_OPEN_SLOTS", 2)
    lost: list[int] = []
    ledger = UsageLedger(store)
    ledger.on_lost = lost.append
    for number in range(3):
        ledger.add(ONE, f"m{number}", UsageSum(requests=2))
    with monkeypatch.context() as patched:
        patched.setattr(store, "write", fail)
        with pytest.raises(StoreError):
            await ledger.settle()
    await ledger.settle()
    assert lost == [2]
    assert len(rows(store)) == 2


async def test_stop_in_the_middle_of_a_settlement_counts_once(store: Store) -> None:
    ledger = UsageLedger(store)
    ledger.add(ONE, "m", UsageSum(requests=1))
    settling = asyncio.create_task(ledger.settle())
    await asyncio.sleep(0)
    settling.cancel()
    await asyncio.gather(settling, return_exceptions=True)
    await ledger.stop()
    assert [row.requests for row in rows(store)] == [1]


async def test_last_use_of_a_key_is_noted(store: Store) -> None:
    service = TenantService(store, 10)
    ops = Actor("ops", "command")
    await service.create_tenant(ops, "acme")
    issued = await service.issue_key(ops, "acme")
    service.usage.add(service.authenticate(issued.secret), "m", UsageSum(requests=1))
    await service.stop()
    (key,) = await service.keys()
    assert key.last_used_at is not None


async def test_key_that_asks_for_no_tokens_is_noted_too(store: Store) -> None:
    service = TenantService(store, 10)
    ops = Actor("ops", "command")
    await service.create_tenant(ops, "acme")
    issued = await service.issue_key(ops, "acme", role=Role.ADMIN)
    service.identify(issued.secret, None, Need.ADMINISTRATION)
    await service.usage.settle()
    (key,) = await service.keys()
    assert key.last_used_at is not None
