"""Knobs that change while streams run."""

from __future__ import annotations

import pytest

from engine.messages import Knobs, Submit
from tests.fakes.engine_models import core_of
from tests.fakes.engine_runs import HYBRID, PLAIN, greedy, prompt, run


@pytest.mark.parametrize("spec", [PLAIN, HYBRID], ids=["one group", "window groups"])
@pytest.mark.parametrize("share", [0.0, 0.2])
def test_cache_share_bounds_idle_pages_and_can_be_turned(spec, share):
    core = core_of(spec, large_pages=100, knobs=Knobs(max_running=4, token_budget=64, prefill_chunk=64))
    run(core, *(Submit(f"a{i}", prompt(60, i), greedy(4)) for i in range(6)))
    assert core.kv.num_idle > 0.2 * core.kv.num_pages
    core.set_knobs(Knobs(max_running=4, token_budget=64, prefill_chunk=64, cache_share=share))
    for i in range(6):
        core.add(Submit(f"b{i}", prompt(60, 10 + i), greedy(4)))
    while core.has_work():
        core.scheduler.kv.tick()
        assert core.kv.num_idle <= share * core.kv.num_pages
        core.step()
        core.scheduler.check_integrity()
    core.set_knobs(Knobs(max_running=4, token_budget=64, prefill_chunk=64))
    run(core, *(Submit(f"c{i}", prompt(60, 20 + i), greedy(4)) for i in range(6)))
    assert core.kv.num_idle > 0.2 * core.kv.num_pages
    again = run(core, Submit("again", prompt(60, 25), greedy(2)))["again"]
    assert again[-1].usage.cached_tokens == 56


def test_fewer_may_run_without_ending_those_that_do():
    core = core_of(PLAIN, large_pages=200, knobs=Knobs(max_running=6, token_budget=64, prefill_chunk=64))
    for i in range(10):
        core.add(Submit(f"r{i}", prompt(5, i), greedy(20 + 5 * i)))
    core.step()
    assert len(core.scheduler.running) == 6
    core.set_knobs(Knobs(max_running=2, token_budget=64, prefill_chunk=64))
    core.step()
    assert len(core.scheduler.running) == 6
    ends = []
    while core.has_work():
        report = core.step()
        ends += [delta.finish for delta in report.deltas if delta.finish]
        assert report.stats.running <= max(2, 6 - len(ends))
    assert ends == ["length"] * 10
