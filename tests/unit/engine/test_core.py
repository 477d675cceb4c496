"""EngineCore with a model whose tokens depend on every page it reads."""

from __future__ import annotations

import pytest
import torch

from engine.core import EngineCore
from engine.errors import WorkerError
from engine.messages import FinishReason, Knobs, SamplingParams, Submit, TokenDelta
from engine.spec.model_spec import AttentionKind
from tests.fakes.engine_models import GraphDevice, HashModel, attention, core_of, spec_of

PLAIN = spec_of(attention(), attention())
HYBRID = spec_of(
    attention(),
    attention(AttentionKind.SLIDING, window=10),
    attention(AttentionKind.SLIDING, window=10),
    attention(AttentionKind.SLIDING, heads=2, window=6),
)


def greedy(count: int, **more: object) -> SamplingParams:
    return SamplingParams(max_tokens=count, temperature=0.0, **more)  # type: ignore[arg-type]


def run(core: EngineCore, *submits: Submit) -> dict[str, list[TokenDelta]]:
    """Drive to the end, checking after each step that pages and states agree."""
    seen: dict[str, list[TokenDelta]] = {submit.request_id: [] for submit in submits}
    for submit in submits:
        core.add(submit)
    for _ in range(20_000):
        if not core.has_work():
            break
        for delta in core.step().deltas:
            seen[delta.request_id].append(delta)
        core.scheduler.check_integrity()
    assert not core.has_work(), "no progress"
    return seen


def tokens(deltas: list[TokenDelta]) -> list[int]:
    assert [d.finish is not None for d in deltas].count(True) == 1, "exactly one terminal message"
    assert deltas[-1].finish is not None
    return [token for delta in deltas for token in delta.token_ids]


def prompt(length: int, seed: int = 1) -> list[int]:
    return [(seed * 7919 + i * 31) % 90 for i in range(length)]


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
