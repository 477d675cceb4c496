"""Admission: places, queues and rates of a tenant, and the bound over all of them."""

from __future__ import annotations

import asyncio

import pytest

from daemon.tenants.admission import Admission, Ticket
from daemon.tenants.limits import Bucket, TenantLimits
from daemon.tenants.principal import Principal, Role
from engine.errors import Draining, InvalidParameter, PermissionDenied, QueueFull, QuotaExceeded


def who(tenant: str = "acme", **limits: object) -> Principal:
    return Principal(tenant, tenant, "k", "bk", Role.INFERENCE, TenantLimits(**limits))  # type: ignore[arg-type]


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def admission(max_queue: int = 100, engine_waiting: int = 0) -> tuple[Admission, Clock]:
    clock = Clock()
    return Admission(max_queue, lambda: engine_waiting, clock), clock


async def waits(door: Admission, principal: Principal, weight: int = 1) -> asyncio.Task[Ticket]:
    task = asyncio.create_task(door.enter(principal, "m", weight))
    await asyncio.sleep(0)
    return task


async def test_concurrency_lets_in_as_many_and_then_in_order() -> None:
    door, _ = admission()
    one = who(max_concurrency=2)
    tickets = [await door.enter(one, "m", 1) for _ in range(2)]
    third, fourth = await waits(door, one), await waits(door, one)
    assert (door.running, door.waiting) == (2, 2)
    tickets[0].release()
    await asyncio.sleep(0)
    assert (third.done(), fourth.done()) == (True, False)
    tickets[0].release()  # again does nothing
    await asyncio.sleep(0)
    assert not fourth.done()
    tickets[1].release()
    (await fourth).release()
    (await third).release()
    assert (door.running, door.waiting) == (0, 0)


async def test_heavy_request_is_not_overtaken() -> None:
    door, _ = admission()
    one = who(max_concurrency=3)
    first = await door.enter(one, "m", 2)
    heavy, light = await waits(door, one, 3), await waits(door, one, 1)
    assert not heavy.done()
    assert not light.done()
    first.release()
    (await heavy).release()
    (await light).release()
    assert door.running == 0


async def test_tenants_do_not_hold_each_other_up() -> None:
    door, _ = admission()
    await door.enter(who("a", max_concurrency=1), "m", 1)
    await waits(door, who("a", max_concurrency=1))
    (await door.enter(who("b", max_concurrency=1), "m", 1)).release()
    assert door.running_of("a") == 1
    assert door.running_of("nobody") == 0


async def test_more_choices_than_places_are_refused() -> None:
    door, _ = admission()
    with pytest.raises(InvalidParameter, match="3 generations"):
        await door.enter(who(max_concurrency=2), "m", 3)


async def test_full_tenant_queue_is_refused_with_both_numbers() -> None:
    door, _ = admission()
    one = who(max_concurrency=1, max_queue=1)
    await door.enter(one, "m", 1)
    await waits(door, one)
    with pytest.raises(QuotaExceeded, match=r"runs 1 of 1 generations and 1 of 1 wait") as caught:
        await door.enter(one, "m", 1)
    assert caught.value.retry_after_s == 1.0


async def test_queue_over_all_counts_the_engines_too() -> None:
    door, _ = admission(max_queue=5, engine_waiting=5)
    with pytest.raises(QueueFull, match="waiting as may: 5"):
        await door.enter(who(), "m", 1)
    door, _ = admission(max_queue=2)
    one = who(max_concurrency=1)
    await door.enter(one, "m", 1)
    await waits(door, one)
    await waits(door, one)
    with pytest.raises(QueueFull):
        await door.enter(who("other"), "m", 1)


async def test_cancelled_waiter_frees_its_place_in_the_queue() -> None:
    door, _ = admission()
    one = who(max_concurrency=1)
    ticket = await door.enter(one, "m", 1)
    gone, next_one = await waits(door, one), await waits(door, one)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    assert door.waiting == 1
    ticket.release()
    (await next_one).release()
    assert (door.running, door.waiting) == (0, 0)


async def test_waiter_cancelled_in_the_turn_it_was_let_in_gives_its_place_on() -> None:
    door, _ = admission()
    one = who(max_concurrency=1)
    ticket = await door.enter(one, "m", 1)
    gone, next_one = await waits(door, one), await waits(door, one)
    ticket.release()
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    (await asyncio.wait_for(next_one, 1)).release()
    assert (door.running, door.waiting) == (0, 0)


async def test_request_rate_refills_steadily() -> None:
    door, clock = admission()
    one = who(requests_per_minute=60)
    for _ in range(60):
        (await door.enter(one, "m", 1)).release()
    with pytest.raises(QuotaExceeded) as caught:
        await door.enter(one, "m", 1)
    assert caught.value.retry_after_s == pytest.approx(1.0)
    clock.now += 1.0
    (await door.enter(one, "m", 1)).release()


async def test_token_rate_is_paid_when_the_price_is_known() -> None:
    door, clock = admission()
    one = who(tokens_per_minute=600)
    (await door.enter(one, "m", 1)).release(total_tokens=1200)
    with pytest.raises(QuotaExceeded) as caught:
        await door.enter(one, "m", 1)
    assert caught.value.retry_after_s == pytest.approx(60.1)
    clock.now += 60.2
    (await door.enter(one, "m", 1)).release()


async def test_door_refuses_models_not_allowed_and_everything_when_draining() -> None:
    door, _ = admission()
    with pytest.raises(PermissionDenied):
        await door.enter(who(models=frozenset({"other"})), "m", 1)
    door.draining = True
    with pytest.raises(Draining):
        await door.enter(who(), "m", 1)


def test_bucket_never_holds_more_than_a_minute() -> None:
    clock = Clock()
    bucket = Bucket(10, clock)
    clock.now += 3600
    bucket.take(10)
    assert bucket.wait_s(1) == pytest.approx(6.0)
