"""The load controller with a clock that tests move and counters that they write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.planning.live_bounds import LiveBounds
from daemon.planning.profile import Profile
from daemon.strategy.load_controller import PATIENCE, LoadController, LoadMove
from daemon.workers.view import WorkerView
from engine.errors import InvalidParameter
from engine.messages import Knobs, WorkerStats
from tests.fakes.strategy_parts import FakeWorkers, bare_profile, worker_view

MakeProfile = Callable[..., Profile]

FEW = Knobs(max_running=4, token_budget=132, prefill_chunk=128, max_step_ms=100.0, speculation_tokens=4)
MANY = Knobs(max_running=32, token_budget=544, prefill_chunk=512, max_step_ms=1000.0)
BOUNDS = LiveBounds(FEW, MANY, dwell_s=15.0)


class Box:
    """One worker whose load the test sets, looked at every three seconds."""

    def __init__(self, profile: Profile) -> None:
        self.now = 1000.0
        self.profile = replace(profile, knobs=FEW, bounds=BOUNDS)
        self.controller = LoadController(lambda: self.now)
        self.workers = FakeWorkers()
        self.submitted = 0
        self.inflight = 0
        self.allowed = 32
        self.pages_active = 0

    def view(self) -> WorkerView:
        running = min(self.inflight, self.allowed)
        stats = WorkerStats(
            running=running,
            waiting=self.inflight - running,
            kv_pages_active=self.pages_active,
            kv_pages_total=100,
            output_tokens_total=self.submitted * 10,
        )
        return replace(worker_view("small", stats), inflight=self.inflight, submitted_total=self.submitted)

    def look(self, times: int = 1, per_look: int = 0) -> LoadMove:
        move = None
        for _ in range(times):
            self.now += 3.0
            self.submitted += per_look
            move = self.controller.knobs(self.profile, self.view())
        assert move is not None
        return move


@pytest.fixture
def box(profile: MakeProfile) -> Box:
    return Box(profile())


def test_idle_worker_stays_at_the_plans_own_place(box: Box) -> None:
    assert box.look(20).knobs == FEW


def test_plan_without_bounds_leaves_the_knobs_alone(box: Box) -> None:
    box.profile = replace(box.profile, bounds=None)
    assert box.controller.knobs(box.profile, box.view()) is None


def test_rising_load_goes_up_at_once_and_says_why(box: Box) -> None:
    box.look()
    box.inflight = 40
    move = box.look(4, per_look=6)
    assert move.knobs.max_running > 4
    for told in ("streams wanted", "requests/s", "output tok/s", "more than 90% of the 4 allowed", "the latency end"):
        assert told in move.reason
    assert box.look(10, per_look=6).knobs == MANY


def test_falling_load_comes_down_only_after_the_dwell(box: Box) -> None:
    box.inflight = 40
    assert box.look(12).knobs == MANY
    box.inflight = 0
    settled = box.now
    while box.look().knobs == MANY:
        pass
    assert box.now - settled >= 10.0
    assert box.look(20).knobs == FEW


def test_load_that_flickers_between_the_thresholds_moves_nothing(box: Box) -> None:
    box.inflight = 10
    standing = box.look(10).knobs
    seen = set()
    for turn in range(60):
        box.inflight = 8 if turn % 2 else 10
        seen.add(box.look().knobs.max_running)
    assert seen == {standing.max_running}


def test_full_pages_forbid_more_streams(box: Box) -> None:
    box.inflight, box.pages_active = 20, 100
    assert box.look(10).knobs == FEW


def test_new_plan_begins_at_its_own_place_or_above_it_where_the_load_is(box: Box) -> None:
    box.look(5)
    box.profile = replace(box.profile, knobs=MANY)
    assert box.look().knobs == MANY, "the schedule foresees a load that is not there yet"
    box.inflight = 40
    box.look(12)
    box.profile = replace(box.profile, knobs=msgspec.structs.replace(FEW, max_running=5))
    assert box.look().knobs == MANY, "it comes down when the load does"


def test_crowd_that_stays_for_two_looks_goes_up_straight_to_where_it_has_room(box: Box) -> None:
    box.look(10)
    box.inflight = 30
    assert box.look().knobs.max_running < MANY.max_running, "one look may be a chance"
    assert box.look(2).knobs == MANY


def test_queue_as_long_as_all_places_goes_up_at_the_first_look(box: Box) -> None:
    box.look(10)
    box.allowed, box.inflight = 4, 14
    assert box.look().knobs.max_running > 14
    box.inflight = 40
    box.allowed = 19
    assert box.look().knobs == MANY, "no dwell holds up a second move"


def test_plan_of_many_streams_is_not_left_while_arrivals_rise(box: Box) -> None:
    box.profile = replace(box.profile, knobs=MANY)
    box.look(2)
    for turn in range(60):
        box.inflight = turn // 10
        assert box.look(per_look=2 + turn).knobs == MANY


def test_plan_of_many_streams_is_left_slowly_and_step_by_step(box: Box) -> None:
    box.profile = replace(box.profile, knobs=MANY)
    box.look(1, per_look=6)
    moves, before = [], MANY.max_running
    for _ in range(120):
        streams = box.look(per_look=6).knobs.max_running
        if streams != before:
            moves.append((box.now, streams))
            before = streams
    assert [streams for _, streams in moves] == [19, 11, 7, 4]
    assert moves[0][0] - 1000.0 >= PATIENCE * BOUNDS.dwell_s
    for (one, _), (other, _) in pairwise(moves):
        assert other - one >= PATIENCE * BOUNDS.dwell_s


def test_plan_of_few_streams_drains_what_it_found_at_the_other_end_then_moves(box: Box) -> None:
    box.profile = replace(box.profile, knobs=MANY)
    box.inflight = 80
    box.look(6, per_look=20)
    box.profile = replace(box.profile, knobs=FEW)
    seen = []
    for left in (80, 60, 40, 20, 5, 1, 1, 0):
        box.inflight = left
        seen.append(box.look().knobs.max_running)
    assert seen[:5] == [32] * 5, "what is there goes on with as many streams"
    assert seen[-1] == 4, "and once it is through no dwell is waited for"
    assert len(set(seen)) == 2, "nothing swings between the ends"


def test_rising_arrivals_go_up_before_the_places_are_full(box: Box) -> None:
    box.inflight = 2
    steady = box.look(20, per_look=2)
    assert steady.knobs == FEW
    box.inflight = 3
    move = box.look(2, per_look=30)
    assert move.knobs.max_running > 4
    assert "rising" in move.reason


def test_new_process_does_not_make_rates_negative(box: Box) -> None:
    box.look(5, per_look=10)
    box.submitted = 0
    box.look(1)
    load = box.controller.load_of("small")
    assert load is not None
    assert load.arrivals_per_s >= 0
    assert load.output_tok_s >= 0


@given(st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_way_between_the_ends_is_monotone(one: float, other: float) -> None:
    low, high = BOUNDS.at(min(one, other)), BOUNDS.at(max(one, other))
    assert low.max_running <= high.max_running
    assert low.prefill_chunk <= high.prefill_chunk
    assert low.max_step_ms <= high.max_step_ms
    assert low.speculation_tokens >= high.speculation_tokens
    assert low.token_budget >= low.max_running


@given(st.lists(st.integers(0, 200), min_size=1, max_size=80))
def test_moves_down_keep_the_dwell_and_knobs_keep_the_bounds(inflights: list[int]) -> None:
    now, last_move, before = 0.0, 0.0, None
    controller = LoadController(lambda: now)
    profile = replace(bare_profile("small"), knobs=FEW, bounds=BOUNDS)
    for inflight in inflights:
        now += 3.0
        stats = WorkerStats(running=min(32, inflight), waiting=max(0, inflight - 32))
        move = controller.knobs(profile, replace(worker_view("small", stats), inflight=inflight))
        assert move is not None
        assert FEW.max_running <= move.knobs.max_running <= MANY.max_running
        if before is not None and move.position != before:
            assert move.position > before or now - last_move >= BOUNDS.dwell_s
            last_move = now
        before = move.position


def test_bounds_with_exchanged_ends_are_refused() -> None:
    with pytest.raises(InvalidParameter, match="Exchange the two"):
        LiveBounds(MANY, FEW).check()
    with pytest.raises(InvalidParameter, match="dwell"):
        LiveBounds(FEW, MANY, 0.0).check()
