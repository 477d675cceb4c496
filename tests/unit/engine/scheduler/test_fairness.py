"""Shares between tenants and classes, in figures."""

from __future__ import annotations

import pytest

from engine.core import EngineCore
from engine.messages import FinishReason, Knobs, Submit
from engine.scheduler.queue import AGEING_S
from engine.scheduler.shares import Want, allot
from tests.fakes.engine_models import core_of
from tests.fakes.engine_runs import PLAIN, greedy, prompt

BUSY = Knobs(max_running=8, token_budget=64, prefill_chunk=32)


class Seconds:
    """A clock that moves when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def steps_until(core: EngineCore, name: str) -> tuple[int, int]:
    """(steps until its first token, until its end)."""
    first = 0
    for step in range(1, 5_000):
        for delta in core.step().deltas:
            if delta.request_id == name:
                first = first or step
                if delta.finish is not None:
                    assert delta.finish is not FinishReason.ERROR
                    return first, step
    raise AssertionError(f"{name} did not end")


@pytest.mark.parametrize(("large_pages", "flood_length"), [(60, 20), (60, 60), (3000, 20), (3000, 300)])
def test_one_request_beside_a_tenants_flood_takes_hardly_longer_than_alone(large_pages, flood_length):
    alone = core_of(PLAIN, large_pages=large_pages, knobs=BUSY)
    alone.add(Submit("one", prompt(40, 3), greedy(20), tenant="lab"))
    alone_first, alone_end = steps_until(alone, "one")

    core = core_of(PLAIN, large_pages=large_pages, knobs=BUSY)
    for i in range(500):
        core.add(Submit(f"flood{i}", prompt(flood_length, i), greedy(200), tenant="acme"))
    for _ in range(30):
        core.step()
    assert core.scheduler.num_waiting > 450
    core.add(Submit("one", prompt(40, 3), greedy(20), tenant="lab"))
    first, end = steps_until(core, "one")
    assert first <= alone_first + 4
    assert end <= alone_end + 8
    core.scheduler.check_integrity()


def test_without_tenants_the_same_request_waits_for_the_whole_flood():
    core = core_of(PLAIN, large_pages=3000, knobs=BUSY)
    for i in range(100):
        core.add(Submit(f"flood{i}", prompt(20, i), greedy(20)))
    core.add(Submit("one", prompt(40, 3), greedy(20)))
    first, _ = steps_until(core, "one")
    assert first > 100


def test_tenants_with_work_without_end_get_tokens_by_weight():
    knobs = Knobs(max_running=4, token_budget=64, prefill_chunk=32, prefix_cache=False)
    core = core_of(PLAIN, large_pages=3000, knobs=knobs)
    weights = {"a": 1.0, "b": 1.0, "c": 2.0}
    lengths = {"a": 10, "b": 60, "c": 30}
    for tenant, weight in weights.items():
        for i in range(400):
            core.add(Submit(f"{tenant}{i}", prompt(lengths[tenant], i), greedy(10), tenant=tenant, weight=weight))
    for _ in range(600):
        core.step()
    tokens = dict.fromkeys(weights, 0)
    waiting = dict.fromkeys(weights, 400)
    for request in core.scheduler.requests.values():
        waiting[request.tenant] -= 1
    for tenant, ended in waiting.items():
        tokens[tenant] = ended * (lengths[tenant] + 10)
    assert all(ended < 400 for ended in waiting.values()), "each was meant to have work left"
    shares = {tenant: count / sum(tokens.values()) for tenant, count in tokens.items()}
    for tenant, share in shares.items():
        assert share == pytest.approx(weights[tenant] / 4, abs=0.04), shares


def test_a_better_class_is_served_at_once_and_a_worse_one_within_its_bound():
    clock = Seconds()
    core = core_of(PLAIN, large_pages=3000, knobs=Knobs(max_running=2, token_budget=32, prefill_chunk=32), clock=clock)
    for i in range(4):
        core.add(Submit(f"worst{i}", prompt(8, i), greedy(400), priority=9))
    for _ in range(5):
        core.step()
    core.add(Submit("better", prompt(8, 50), greedy(4), priority=1))
    first, _ = steps_until(core, "better")
    assert first <= 3, "one of a worse class gives way"

    core = core_of(PLAIN, large_pages=3000, knobs=Knobs(max_running=2, token_budget=32, prefill_chunk=32), clock=clock)
    core.add(Submit("low", prompt(8, 99), greedy(12), priority=5))
    began = clock.now
    ended_at = None
    for i in range(4000):
        while core.scheduler.num_waiting < 6:
            core.add(Submit(f"high{clock.now}-{len(core.scheduler.requests)}", prompt(8, i), greedy(6)))
        for delta in core.step().deltas:
            if delta.request_id == "low" and delta.finish is not None:
                ended_at = clock.now
        clock.now += 0.1
        if ended_at is not None:
            break
    assert ended_at is not None, "starved"
    assert AGEING_S <= ended_at - began <= AGEING_S + 3.0, "after its wait it is not preempted for the better ones"


def test_deadline_ends_a_request_waiting_or_running():
    clock = Seconds()
    core = core_of(PLAIN, knobs=Knobs(max_running=1), clock=clock)
    core.add(Submit("runs", prompt(5), greedy(1000), deadline_s=2.0))
    core.add(Submit("waits", prompt(5, 2), greedy(5), deadline_s=1.0))
    core.add(Submit("has time", prompt(5, 3), greedy(5), deadline_s=60.0))
    core.add(Submit("late already", prompt(5, 4), greedy(5), deadline_s=0.0))
    ends: dict[str, tuple[float, str | None, int]] = {}
    for _ in range(200):
        if not core.has_work():
            break
        for delta in core.step().deltas:
            if delta.finish is not None:
                assert delta.usage is not None or delta.request_id == "late already"
                produced = delta.usage.output_tokens if delta.usage else 0
                ends[delta.request_id] = (clock.now, delta.error.code if delta.error else None, produced)
        core.scheduler.check_integrity()
        clock.now += 0.1
    assert ends["late already"][:2] == (0.0, "deadline_exceeded")
    assert ends["waits"][0] == pytest.approx(1.0, abs=0.11)
    assert ends["waits"][1:] == ("deadline_exceeded", 0)
    assert ends["runs"][0] == pytest.approx(2.0, abs=0.11)
    assert ends["runs"][1] == "deadline_exceeded"
    assert ends["runs"][2] > 10, "what it wrote until then is counted"
    assert ends["has time"][1] is None
    assert core.stats().deadlines_total == 2
    assert core.kv.num_active == 0


def test_shares_are_filled_by_weight_and_what_one_leaves_goes_to_the_others():
    a, b = (Want(0, name, 1.0, 100) for name in "ab")
    assert allot([a, b], 500, 4) == [100, 100]
    assert allot([a, a, b], 90, 4) == [45, 0, 45]
    assert allot([a, Want(0, "b", 1.0, 10)], 90, 4) == [80, 10]
    assert allot([a, Want(0, "b", 3.0, 100)], 80, 4) == [20, 60]
    assert allot([a, Want(1, "b", 9.0, 100)], 80, 4) == [80, 0], "a worse standing gets what is left over"
    assert allot([Want(0, str(i), 1.0, 100) for i in range(20)], 40, 16)[:3] == [16, 16, 8], "no slivers"
