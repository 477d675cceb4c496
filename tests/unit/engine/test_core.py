"""EngineCore with a model whose tokens depend on every page it reads."""

from __future__ import annotations

import time

import pytest
import torch

from engine.errors import WorkerError
from engine.messages import FinishReason, Knobs, Submit
from engine.spec.model_spec import AttentionKind
from tests.fakes.engine_models import HashModel, attention, core_of, spec_of
from tests.fakes.engine_runs import HYBRID, PLAIN, greedy, prompt, run, tokens


@pytest.mark.parametrize("spec", [PLAIN, HYBRID], ids=["plain", "hybrid"])
@pytest.mark.parametrize("chunk", [1, 3, 7, 512])
def test_tokens_in_any_chunking_equal_those_of_one_chunk(spec, chunk):
    request = Submit("a", prompt(37), greedy(20))
    whole = run(core_of(spec, knobs=Knobs(token_budget=512, prefill_chunk=512)), request)
    parts = run(core_of(spec, knobs=Knobs(token_budget=max(chunk, 4), prefill_chunk=chunk)), request)
    assert tokens(parts["a"]) == tokens(whole["a"])


@pytest.mark.parametrize("spec", [PLAIN, HYBRID], ids=["plain", "hybrid"])
def test_tokens_among_others_and_after_preemption_equal_those_alone(spec):
    submits = [Submit(f"r{i}", prompt(11 + 5 * i, i), greedy(25)) for i in range(16)]
    alone = {s.request_id: tokens(run(core_of(spec), s)[s.request_id]) for s in submits}
    small = core_of(spec, large_pages=40 if spec is PLAIN else 60, knobs=Knobs(max_running=16, token_budget=32))
    crowded = run(small, *submits)
    assert small.scheduler.preemptions_total > 0, "the pool was meant to be too small"
    assert {name: tokens(deltas) for name, deltas in crowded.items()} == alone
    assert small.kv.num_active == 0


@pytest.mark.parametrize("spec", [PLAIN, HYBRID], ids=["plain", "hybrid"])
def test_prefix_cache_when_warm_gives_the_same_tokens_and_counts_hits(spec):
    core = core_of(spec)
    cold = run(core, Submit("a", prompt(41), greedy(9)))["a"]
    warm = run(core, Submit("b", prompt(41), greedy(9)))["b"]
    assert tokens(cold) == tokens(warm)
    assert cold[-1].usage.cached_tokens == 0
    assert warm[-1].usage.cached_tokens == 40, "ten full blocks of four, the last token computed"


def test_prefix_cache_of_another_salt_is_not_shared():
    core = core_of(PLAIN)
    run(core, Submit("a", prompt(41), greedy(2), cache_salt="acme"))
    other = run(core, Submit("b", prompt(41), greedy(2), cache_salt="lab"))["b"]
    assert other[-1].usage.cached_tokens == 0


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 7, 8, 9])
def test_prompt_lengths_around_a_block_border_give_the_same_tokens_cold_and_warm(length):
    core = core_of(HYBRID)
    first = tokens(run(core, Submit("a", prompt(length), greedy(12)))["a"])
    assert tokens(run(core, Submit("b", prompt(length), greedy(12)))["b"]) == first


def test_second_turn_computes_only_what_is_new():
    core = core_of(HYBRID)
    first = tokens(run(core, Submit("a", prompt(30), greedy(10)))["a"])
    turn = prompt(30) + first + prompt(6, 9)
    second = run(core, Submit("b", turn, greedy(3)))["b"]
    # The last sampled token was never computed, and only full blocks are shared.
    assert second[-1].usage.cached_tokens == 36


def test_abort_in_every_state_frees_its_pages():
    core = core_of(PLAIN, knobs=Knobs(max_running=2, token_budget=8, prefill_chunk=4))
    for name in ("decoding", "prefilling", "waiting"):
        core.add(Submit(name, prompt(3 if name == "decoding" else 40, len(name)), greedy(50)))
    for _ in range(3):
        core.step()
    assert core.scheduler.num_waiting == 1
    for name in ("waiting", "prefilling", "decoding", "never seen"):
        core.abort(name)
        core.scheduler.check_integrity()
    ended = core.step().deltas
    assert sorted((d.request_id, d.finish) for d in ended) == [
        (name, FinishReason.ABORT) for name in ("decoding", "prefilling", "waiting")
    ]
    assert core.kv.num_active == 0
    assert not core.has_work()


def test_numerical_fault_ends_that_request_alone():
    model = HashModel(PLAIN, broken_ids=frozenset({96}))
    core = core_of(PLAIN, model=model)
    seen = run(core, Submit("bad", [5, 96], greedy(5)), Submit("good", prompt(9), greedy(5)))
    assert seen["bad"][-1].finish is FinishReason.ERROR
    assert seen["bad"][-1].error.code == "numerical_fault"
    assert seen["good"][-1].finish is not FinishReason.ERROR


def test_failing_steps_end_their_requests_and_the_third_in_a_row_ends_the_worker(caplog):
    class Failing(HashModel):
        def forward(self, batch):
            raise RuntimeError("no kernel for this")

    core = core_of(PLAIN, model=Failing(PLAIN))
    for i in range(2):
        ended = run(core, Submit(f"r{i}", [1, 2], greedy(2)))[f"r{i}"]
        assert ended[-1].error.code == "worker_error"
        assert core.kv.num_active == 0
    core.add(Submit("r2", [1, 2], greedy(2)))
    with pytest.raises(WorkerError, match="3 steps failed in a row"):
        core.step()
    assert [record.exc_info[0] for record in caplog.records if "step_failed" in record.message] == [RuntimeError] * 3


@pytest.mark.parametrize(
    ("ids", "code"),
    [
        ([], "invalid_parameter"),
        ([97], "invalid_parameter"),
        ([-1], "invalid_parameter"),
        ([1] * 4096, "context_length_exceeded"),
    ],
)
def test_request_that_can_never_run_ends_at_once_with_a_reason(ids, code):
    core = core_of(PLAIN, large_pages=2000)
    seen = run(core, Submit("a", ids, greedy(2)))["a"]
    assert seen[-1].finish is FinishReason.ERROR
    assert seen[-1].error.code == code


def test_context_is_limited_to_what_the_pool_can_hold():
    core = core_of(PLAIN, large_pages=5)
    assert core.max_context_tokens == 16
    deltas = run(core, Submit("a", prompt(10), greedy(100)))["a"]
    assert deltas[-1].finish is FinishReason.LENGTH
    assert len(tokens(deltas)) == 6


def test_stop_token_ends_without_being_delivered_but_not_before_min_tokens():
    first = tokens(run(core_of(PLAIN), Submit("a", prompt(9), greedy(10)))["a"])
    stop = first[3]
    place = first.index(stop)
    stopped = run(core_of(PLAIN), Submit("a", prompt(9), greedy(10, stop_token_ids=(stop,))))["a"]
    assert stopped[-1].finish is FinishReason.STOP
    assert tokens(stopped) == first[:place]
    assert stopped[-1].usage.output_tokens == place + 1
    ignored = run(core_of(PLAIN), Submit("a", prompt(9), greedy(10, stop_token_ids=(stop,), ignore_eos=True)))["a"]
    assert tokens(ignored) == first
    late = run(core_of(PLAIN), Submit("a", prompt(9), greedy(10, stop_token_ids=(stop,), min_tokens=6)))["a"]
    assert len(tokens(late)) >= 6
    assert stop not in tokens(late)[:6]


def test_knobs_change_between_steps_without_losing_a_token():
    expected = tokens(run(core_of(PLAIN), Submit("a", prompt(9), greedy(12)))["a"])
    core = core_of(PLAIN)
    core.add(Submit("a", prompt(9), greedy(12)))
    seen = []
    for step in range(200):
        if not core.has_work():
            break
        core.set_knobs(Knobs(max_running=1 + step % 3, token_budget=1 + step % 5, prefill_chunk=1 + step % 4))
        seen += core.step().deltas
    assert tokens(seen) == expected


def test_decodes_go_on_while_a_long_prompt_is_admitted():
    core = core_of(PLAIN, large_pages=600, knobs=Knobs(max_running=4, token_budget=16, prefill_chunk=8))
    core.add(Submit("short", prompt(4), greedy(60)))
    core.step()
    core.add(Submit("long", prompt(400), greedy(1)))
    for _ in range(30):
        assert any(delta.request_id == "short" for delta in core.step().deltas), "a decode was left out of a step"


def test_the_time_of_steps_is_shared_out_to_their_requests():
    class Slow(HashModel):
        def forward(self, batch):
            time.sleep(0.01)
            return super().forward(batch)

    core = core_of(PLAIN, model=Slow(PLAIN))
    began = time.perf_counter()
    seen = run(core, Submit("a", prompt(5), greedy(6)), Submit("b", prompt(5, 2), greedy(6)))
    spent_s = time.perf_counter() - began
    shared_s = sum(deltas[-1].usage.device_s for deltas in seen.values())
    assert 0.05 < shared_s <= spent_s
    assert core.stats().last_step_s >= 0.01


def test_priority_is_served_first():
    core = core_of(PLAIN, knobs=Knobs(max_running=1))
    for name, priority in (("low", 5), ("high", 0), ("middle", 2)):
        core.add(Submit(name, prompt(5), greedy(2), priority=priority))
    order = [d.request_id for _ in range(12) for d in (core.step().deltas if core.has_work() else []) if d.finish]
    assert order == ["high", "middle", "low"]


def test_buffer_takes_bfloat16_pages():
    from engine.kv.buffer import allocate_buffer

    buffer = allocate_buffer(64, torch.bfloat16, torch.device("cpu"))
    assert buffer.dtype is torch.bfloat16
    assert buffer.shape == (64,)
    assert float(buffer.abs().sum()) == 0.0


def test_a_model_of_windows_alone_serves_contexts_far_longer_than_its_pool():
    spec = spec_of(attention(AttentionKind.SLIDING, window=8))
    small = core_of(spec, large_pages=5, knobs=Knobs(token_budget=64, prefill_chunk=64), max_context=400)
    assert small.max_context_tokens == 400, "four pages hold a window of eight, a page of chunk and its border"
    roomy = core_of(spec, large_pages=200, knobs=Knobs(token_budget=64, prefill_chunk=64), max_context=400)
    submits = [Submit("a", prompt(120), greedy(60)), Submit("b", prompt(90, 5), greedy(30))]
    assert {n: tokens(d) for n, d in run(small, *submits).items()} == {
        n: tokens(d) for n, d in run(roomy, *submits).items()
    }
