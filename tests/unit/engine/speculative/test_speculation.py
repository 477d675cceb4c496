"""How many guesses are made, and when none."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from engine.speculative import Speculation
from engine.speculative.worth import GuessPace, Line


class FixedDrafter:
    name = "fixed"
    free = True

    def __init__(self) -> None:
        self.asked: list[int] = []

    def propose(self, wishes):
        self.asked += [count for _, count in wishes]
        return {request.id: [1] * count for request, count in wishes}

    def observe(self, chunks):
        pass

    def release(self, request_id):
        pass


def request(name: str = "a"):
    return SimpleNamespace(id=name, token_ids=[1, 2, 3], grammar=None)


def speculation(**options) -> tuple[Speculation, FixedDrafter]:
    made, drafter = Speculation(**options), FixedDrafter()
    made.drafters = [drafter]
    return made, drafter


def chunks(rows: int, guesses: int) -> list[SimpleNamespace]:
    """A step of decodes, each with so many guesses."""
    return [SimpleNamespace(is_decode=True, draft=(1,) * guesses) for _ in range(rows)]


def drive(made: Speculation, one, *, steps: int, seconds, right) -> int:
    """Steps of one request; how many of them had guesses."""
    guessed = 0
    for _ in range(steps):
        made.begin([(one, 8)], 1)
        draft = made.take(one, 8)
        guessed += bool(draft)
        made.note_step(chunks(1, len(draft)), seconds(len(draft)))
        if draft:
            made.note(one, len(draft), min(right, len(draft)))
    return guessed


def test_guesses_that_are_right_grow_longer_and_wrong_ones_shorter_and_rarer():
    made, drafter = speculation()
    made.heeds_cost = False
    one = request()
    drive(made, one, steps=20, seconds=lambda n: 1.0, right=8)
    assert drafter.asked[-1] == 8
    drafter.asked.clear()
    drive(made, one, steps=200, seconds=lambda n: 1.0, right=0)
    assert drafter.asked[-1] <= 2
    assert len(drafter.asked) < 20


def test_guesses_that_cost_more_than_they_bring_are_given_up_but_tried_again():
    made, _ = speculation()
    guessed = drive(made, request(), steps=400, seconds=lambda n: 0.010 if n == 0 else 0.010 * (1 + n), right=0)
    assert guessed < 40
    rested = made.is_resting
    made, _ = speculation()
    early = drive(made, request(), steps=100, seconds=lambda n: 0.01 + 0.02 * n, right=1)
    late = drive(made, request(), steps=1000, seconds=lambda n: 0.01 + 0.02 * n, right=1)
    assert early + late < 100
    assert late > 0, "what does not pay now may pay later"
    assert rested or made.is_resting


def test_steps_without_a_guess_let_the_next_ones_overlap_and_look_again():
    made, drafter = speculation()
    drafter.propose = lambda wishes: {}
    resting = 0
    for _ in range(400):
        resting += made.is_resting
        made.begin([(request(), 8)], 1)
        made.note_step(chunks(1, 0), 0.010)
    assert 340 < resting < 390, "some steps look whether there is anything to guess by now"
    drafter.propose = lambda wishes: {one.id: [1] * count for one, count in wishes}
    assert drive(made, request(), steps=100, seconds=lambda n: 0.010 + 0.0001 * n, right=8) > 60


def test_guesses_that_pay_go_on_and_the_baseline_is_kept_fresh():
    made, _ = speculation()
    guessed = drive(made, request(), steps=1000, seconds=lambda n: 0.010 + 0.0001 * n, right=8)
    assert 950 < guessed < 1000


def test_length_follows_the_load():
    """With few sequences a long draft costs little; with many each guess costs as much as a token."""

    def usual(rows: int, each_s: float) -> int:
        made, _ = speculation()
        wishes = [(request(str(n)), 8) for n in range(rows)]
        lengths = []
        for _ in range(300):
            made.begin(wishes, rows)
            drafts = [made.take(one, 8) for one, _ in wishes]
            guesses = sum(map(len, drafts))
            step = [SimpleNamespace(is_decode=True, draft=draft) for draft in drafts]
            made.note_step(step, 0.010 + each_s * (rows + guesses))
            for (one, _), draft in zip(wishes, drafts, strict=True):
                if draft:
                    made.note(one, len(draft), len(draft) - 1)
            lengths.append(max(map(len, drafts)))
        return sorted(lengths[-100:])[50]

    assert usual(1, 0.0001) >= 4
    assert usual(32, 0.002) <= 2


def test_take_gives_a_draft_once_and_no_more_than_there_is_room_for():
    made, _ = speculation()
    made.heeds_cost = False
    one = request()
    made.begin([(one, 3)], 1)
    assert len(made.take(one, 2)) == 2
    assert made.take(one, 2) == ()
    made.begin([(one, 3)], 1)
    made.begin([], 1)
    assert made.take(one, 2) == (), "a step's guesses do not outlive it"


def test_costly_drafter_is_asked_only_where_free_ones_have_nothing_and_its_time_counts():
    now = [0.0]
    made, free = speculation(clock=lambda: now[0])
    made.heeds_cost = False

    class Slow(FixedDrafter):
        free = False

        def propose(self, wishes):
            now[0] += 0.5
            return super().propose(wishes)

    slow = Slow()
    made.drafters = [free, slow]
    made.begin([(request(), 2)], 1)
    assert slow.asked == []
    made.drafters = [slow]
    made.begin([(request(), 2)], 1)
    assert slow.asked == [2]
    for _ in range(5):
        made.pace.note(1, 0, 0.1)
        made.pace.note(1, 4, 0.1)
    assert made.pace.gain(1, 4, 4) == pytest.approx(5 * 0.1 / 0.6)


def test_line_follows_measurements():
    line = Line()
    for x in (1, 5, 9) * 10:
        line.note(x, 2.0 + 0.5 * x)
    assert line.at(7) == pytest.approx(5.5)
    flat = Line()
    for _ in range(4):
        flat.note(3, 2.0)
    assert flat.at(100) == pytest.approx(2.0)


def test_pace_knows_nothing_before_it_has_measured_enough():
    pace = GuessPace()
    pace.note(2, 0, 0.1)
    assert pace.gain(2, 4, 3) is None
    assert not pace.knows_plain(2)
