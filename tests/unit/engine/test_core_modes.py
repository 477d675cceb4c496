"""Overlap, graphs, draws on the device and guesses: each gives the tokens of plain steps."""

from __future__ import annotations

import pytest

from engine.core import EngineCore
from engine.messages import FinishReason, Knobs, SamplingParams, Submit
from tests.fakes.engine_models import GraphDevice, HashModel, core_of
from tests.fakes.engine_runs import HYBRID, PLAIN, greedy, prompt, run, tokens

MODES = {
    "plain": {},
    "overlap": {"overlap": True},
    "graphs": {"graphs": True},
    "both": {"overlap": True, "graphs": True},
}


def core_in(mode: str, spec, **more) -> EngineCore:
    options = dict(MODES[mode])
    device = GraphDevice() if options.pop("graphs", False) else None
    return core_of(spec, device=device, **options, **more)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("spec", [PLAIN, HYBRID], ids=["plain", "hybrid"])
@pytest.mark.parametrize("large_pages", [40, 400], ids=["preempting", "roomy"])
def test_tokens_with_overlap_and_graphs_equal_those_of_plain_steps(mode, spec, large_pages):
    submits = []
    for i in range(9):
        params = [
            greedy(14),
            SamplingParams(max_tokens=9, seed=i),
            greedy(7, frequency_penalty=0.7, top_logprobs=2),
            SamplingParams(max_tokens=9, seed=i, top_p=0.8, temperature=1.3),
        ]
        submits.append(Submit(f"r{i}", prompt(6 + 7 * i, i % 4), params[i % 4], priority=i % 2))
    plain = run(core_of(spec, large_pages=400), *submits)
    core = core_in(mode, spec, large_pages=large_pages, knobs=Knobs(max_running=7, token_budget=24, prefill_chunk=9))
    other = run(core, *submits)
    assert {n: tokens(d) for n, d in other.items()} == {n: tokens(d) for n, d in plain.items()}
    assert {n: d[-1].usage.output_tokens for n, d in other.items()} == {n: len(tokens(d)) for n, d in plain.items()}
    if large_pages == 40:
        assert core.scheduler.preemptions_total > 0


@pytest.mark.parametrize("mode", ["overlap", "both"])
def test_stop_abort_and_numbers_that_are_not_with_overlap(mode):
    first = tokens(run(core_of(PLAIN), Submit("a", prompt(9), greedy(10)))["a"])
    model = HashModel(PLAIN, broken_ids=frozenset({96}))
    core = core_in(mode, PLAIN, model=model)
    submits = [
        Submit("stops", prompt(9), greedy(10, stop_token_ids=(first[4],))),
        Submit("runs", prompt(9), greedy(10)),
        Submit("bad", [5, 96], greedy(5)),
    ]
    seen = run(core, *submits)
    assert tokens(seen["stops"]) == first[: first.index(first[4])]
    assert seen["stops"][-1].usage.output_tokens == first.index(first[4]) + 1
    assert tokens(seen["runs"]) == first
    assert seen["bad"][-1].error.code == "numerical_fault"
    core.add(Submit("gone", prompt(5), greedy(50)))
    for _ in range(4):
        core.step()
    core.abort("gone")
    ends = []
    while core.has_work():
        ends += [delta.finish for delta in core.step().deltas if delta.finish]
        core.scheduler.check_integrity()
    assert ends == [FinishReason.ABORT]
    assert core.kv.num_active == 0


def test_graphs_of_every_bucket_and_one_less_give_the_tokens_of_eager_steps():
    device = GraphDevice()
    for count in (1, 2, 3, 4, 7, 8, 15, 16):
        submits = [Submit(f"r{i}", prompt(3 + i, i), greedy(4)) for i in range(count)]
        knobs = Knobs(max_running=32, token_budget=512, prefill_chunk=64)
        graphed = run(core_of(PLAIN, large_pages=400, device=device, knobs=knobs), *submits)
        eager = run(core_of(PLAIN, large_pages=400, knobs=knobs), *submits)
        assert {n: tokens(d) for n, d in graphed.items()} == {n: tokens(d) for n, d in eager.items()}
    assert device.replays > device.captures > 0


@pytest.mark.parametrize("mode", ["overlap", "both"])
def test_drawn_tokens_on_the_device_equal_those_drawn_on_the_host(mode):
    kinds = [{}, {"top_k": 3}, {"min_p": 0.1, "temperature": 0.7}, {"top_p": 0.5}, {"temperature": 0.0}]
    submits = [
        Submit(f"r{i}", prompt(5 + i, i), SamplingParams(max_tokens=12, seed=i, **kinds[i % 5])) for i in range(10)
    ]
    host = run(core_of(PLAIN), *submits)
    core = core_in(mode, PLAIN)
    assert {n: tokens(d) for n, d in run(core, *submits).items()} == {n: tokens(d) for n, d in host.items()}
    if mode == "both":
        assert core.device.replays > 5, "a batch with draws is replayed too"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("spec", [PLAIN, HYBRID], ids=["plain", "hybrid"])
@pytest.mark.parametrize("large_pages", [44, 400], ids=["preempting", "roomy"])
def test_guessing_changes_no_token_and_saves_steps(mode, spec, large_pages):
    submits = [Submit(f"r{i}", prompt(5 + 6 * i, i), greedy(40)) for i in range(6)]
    submits[2] = Submit("r2", prompt(9, 2), SamplingParams(max_tokens=12, seed=3))
    submits[3] = Submit("r3", prompt(9, 3), greedy(20, presence_penalty=0.5))
    model = HashModel(spec, habit=True)
    plain = core_of(spec, large_pages=400, model=model)
    expected = {n: tokens(d) for n, d in run(plain, *submits).items()}
    knobs = Knobs(max_running=6, token_budget=32, prefill_chunk=16, speculation_tokens=4)
    core = core_in(mode, spec, large_pages=large_pages, model=model, knobs=knobs)
    core.scheduler.speculation.heeds_cost = False
    seen = run(core, *submits)
    assert {n: tokens(d) for n, d in seen.items()} == expected
    assert all(d[-1].usage.output_tokens == len(tokens(d)) for d in seen.values())
    stats = core.stats()
    assert 0 < stats.draft_accepted_total < stats.draft_tokens_total
    if large_pages == 400:
        assert stats.step < plain.stats().step


def test_guessing_stops_at_stop_tokens_and_length_and_gives_bad_numbers_up():
    model = HashModel(PLAIN, habit=True)
    whole = tokens(run(core_of(PLAIN, model=model), Submit("a", prompt(9), greedy(40)))["a"])
    guess = Knobs(speculation_tokens=8)
    stop = whole[17]
    stopped = run(core_of(PLAIN, model=model, knobs=guess), Submit("a", prompt(9), greedy(40, stop_token_ids=(stop,))))
    assert tokens(stopped["a"]) == whole[: whole.index(stop)]
    short = run(core_of(PLAIN, model=model, knobs=guess), Submit("a", prompt(9), greedy(23)))
    assert tokens(short["a"]) == whole[:23]
    broken = HashModel(PLAIN, habit=True, broken_ids=frozenset({whole[20]}))
    ended = run(core_of(PLAIN, model=broken, knobs=guess), Submit("a", prompt(9), greedy(40)))["a"]
    assert ended[-1].error.code == "numerical_fault"
    assert tokens(ended) == whole[: whole.index(whole[20]) + 1]


def test_slots_and_token_pool_grow_past_their_first_size():
    submits = [Submit(f"r{i}", prompt(2 + i % 3, i), greedy(5)) for i in range(90)]
    knobs = Knobs(max_running=90, token_budget=512, prefill_chunk=64)
    core = core_in("both", PLAIN, large_pages=600, knobs=knobs)
    eager = run(core_of(PLAIN, large_pages=600, knobs=knobs), *submits)
    assert {n: tokens(d) for n, d in run(core, *submits).items()} == {n: tokens(d) for n, d in eager.items()}
    assert core.runner.tables.num_rows == 128
