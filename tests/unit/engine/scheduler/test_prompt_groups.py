"""Several answers to one prompt: it is computed once, whatever else happens."""

from __future__ import annotations

import pytest

from engine.messages import FinishReason, Knobs, SamplingParams, Submit
from tests.fakes.engine_models import core_of
from tests.fakes.engine_runs import HYBRID, PLAIN, greedy, prompt, run, tokens


def group(count: int, length: int = 41, output: int = 9, **more: object) -> list[Submit]:
    return [
        Submit(f"g{i}", prompt(length), SamplingParams(max_tokens=output, seed=i), prompt_group="g", **more)  # type: ignore[arg-type]
        for i in range(count)
    ]


@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlap"])
@pytest.mark.parametrize("cache", [False, True], ids=["no cache", "cache"])
@pytest.mark.parametrize("spec", [PLAIN, HYBRID], ids=["one group", "window groups"])
def test_a_groups_prompt_is_computed_once_and_its_answers_are_those_of_each_alone(spec, cache, overlap):
    submits = group(5)
    alone = {s.request_id: tokens(run(core_of(spec), s)[s.request_id]) for s in submits}
    knobs = Knobs(max_running=8, token_budget=64, prefill_chunk=16, prefix_cache=cache)
    core = core_of(spec, large_pages=400, knobs=knobs, overlap=overlap)
    seen = run(core, *submits)
    assert {name: tokens(deltas) for name, deltas in seen.items()} == alone
    assert len({tuple(t) for t in alone.values()}) > 1, "seeds were meant to differ"
    cached = sorted(deltas[-1].usage.cached_tokens for deltas in seen.values())
    assert cached == [0, 40, 40, 40, 40], "ten full pages are shared, the last token is computed by each"
    assert core.stats().prompt_tokens_total == 41 + 4 * 1


def test_a_groups_full_pages_are_held_once():
    knobs = Knobs(max_running=8, token_budget=64, prefill_chunk=64, prefix_cache=False)
    core = core_of(PLAIN, large_pages=400, knobs=knobs)
    for submit in group(6, output=50):
        core.add(submit)
    while len(core.scheduler.running) < 6:
        core.step()
    assert core.kv.num_active <= 10 + 6 * 2


def test_members_of_a_group_that_wait_for_its_prompt_keep_nobody_else_waiting():
    knobs = Knobs(max_running=3, token_budget=8, prefill_chunk=4)
    core = core_of(PLAIN, large_pages=400, knobs=knobs)
    for submit in group(4):
        core.add(submit)
    core.add(Submit("other", prompt(4, 8), greedy(2)))
    ends = []
    while core.has_work():
        ends += [delta.request_id for delta in core.step().deltas if delta.finish]
        core.scheduler.check_integrity()
    assert ends[0] == "other", "it ran while the long prompt was computed"


@pytest.mark.parametrize("spec", [PLAIN, HYBRID], ids=["one group", "window groups"])
@pytest.mark.parametrize("steps", range(1, 9))
def test_the_first_of_a_group_may_go_at_any_moment(spec, steps):
    submits = group(4)
    alone = {s.request_id: tokens(run(core_of(spec), s)[s.request_id]) for s in submits}
    core = core_of(spec, large_pages=400, knobs=Knobs(max_running=8, token_budget=16, prefill_chunk=8))
    for submit in submits:
        core.add(submit)
    produced: dict[str, list[int]] = {name: [] for name in alone}
    finished = {}
    for step in range(2000):
        if step == steps:
            core.abort("g0")
        if not core.has_work():
            break
        for delta in core.step().deltas:
            produced[delta.request_id] += delta.token_ids
            if delta.finish:
                finished[delta.request_id] = delta.finish
        core.scheduler.check_integrity()
    assert finished["g0"] is FinishReason.ABORT
    assert all(produced[name] == alone[name] for name in ("g1", "g2", "g3"))
    assert core.kv.num_active == 0


def test_groups_under_want_of_pages_still_give_the_same_answers():
    submits = group(6, length=30, output=20)
    alone = {s.request_id: tokens(run(core_of(HYBRID), s)[s.request_id]) for s in submits}
    core = core_of(HYBRID, large_pages=40, knobs=Knobs(max_running=8, token_budget=32, prefill_chunk=16))
    assert {name: tokens(deltas) for name, deltas in run(core, *submits).items()} == alone


@pytest.mark.parametrize(
    "other", [{"prompt": prompt(41, 7)}, {"tenant": "lab"}, {"cache_salt": "lab"}, {"adapter": "x"}]
)
def test_a_group_of_different_prompts_tenants_or_adapters_is_refused(other):
    core = core_of(PLAIN)
    core.add(Submit("a", prompt(41), greedy(2), prompt_group="g"))
    other = dict(other)
    core.add(Submit("b", other.pop("prompt", prompt(41)), greedy(2), prompt_group="g", **other))
    deltas = [delta for delta in core.step().deltas if delta.request_id == "b"]
    assert deltas[0].error.code == "invalid_parameter"


def test_a_prompt_shorter_than_a_page_is_shared_by_nobody_and_held_back_by_nobody():
    seen = run(core_of(PLAIN), *group(3, length=3))
    assert all(deltas[-1].usage.cached_tokens == 0 for deltas in seen.values())
