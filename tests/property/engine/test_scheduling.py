"""Tiny pools, random arrivals, aborts and knobs: every request ends once, in bounded steps, with its own tokens."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.messages import FinishReason, Knobs, SamplingParams, Submit
from engine.spec.model_spec import AttentionKind
from tests.fakes.engine_models import GraphDevice, attention, core_of, spec_of

SPECS = [
    spec_of(attention()),
    spec_of(attention(AttentionKind.SLIDING, window=6)),
    spec_of(attention(), attention(AttentionKind.SLIDING, window=6)),
    spec_of(attention(), attention(), attention(AttentionKind.SLIDING, heads=3, window=9)),
]

arrival = st.tuples(
    st.integers(0, 12),  # steps to wait before it
    st.integers(1, 30),  # prompt length
    st.integers(1, 12),  # output length
    st.integers(0, 2),  # shared prefix family
    st.integers(0, 2),  # priority
    st.none() | st.integers(0, 20),  # abort after so many steps
)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    spec=st.sampled_from(SPECS),
    large_pages=st.integers(16, 40),
    arrivals=st.lists(arrival, min_size=1, max_size=12),
    max_running=st.integers(1, 6),
    budget=st.integers(1, 24),
    chunk=st.integers(1, 16),
    cache=st.booleans(),
    overlap=st.booleans(),
    graphs=st.booleans(),
    guesses=st.sampled_from([0, 0, 3]),
)
def test_random_arrivals_all_end_once_and_leave_an_empty_pool(
    spec, large_pages, arrivals, max_running, budget, chunk, cache, overlap, graphs, guesses
):
    limits = {"max_running": max_running, "token_budget": budget, "prefill_chunk": chunk}
    knobs = Knobs(**limits, prefix_cache=cache, speculation_tokens=guesses)
    core = core_of(
        spec, large_pages=large_pages, knobs=knobs, overlap=overlap, device=GraphDevice() if graphs else None
    )
    reference = core_of(spec, large_pages=400, knobs=Knobs(prefix_cache=False))
    pending = [
        (
            wait,
            Submit(f"r{i}", _prompt(length, family), SamplingParams(max_tokens=out, temperature=0.0), priority=rank),
            stop,
        )
        for i, (wait, length, out, family, rank, stop) in enumerate(arrivals)
    ]
    produced: dict[str, list[int]] = {}
    ends: dict[str, list[FinishReason]] = {}
    aborts: dict[int, list[str]] = {}
    clock = 0
    while pending or core.has_work():
        while pending and pending[0][0] <= 0:
            _, submit, stop = pending.pop(0)
            core.add(submit)
            if stop is not None:
                aborts.setdefault(clock + stop, []).append(submit.request_id)
        if pending:
            pending[0] = (pending[0][0] - 1, *pending[0][1:])
        for name in aborts.pop(clock, []):
            core.abort(name)
        if core.has_work():
            for delta in core.step().deltas:
                produced.setdefault(delta.request_id, []).extend(delta.token_ids)
                if delta.finish is not None:
                    ends.setdefault(delta.request_id, []).append(delta.finish)
            core.scheduler.check_integrity()
        clock += 1
        assert clock < 5_000, "no progress in bounded steps"
    assert all(len(reasons) == 1 for reasons in ends.values())
    assert len(ends) == len(arrivals)
    assert core.kv.num_active == 0
    for i, (_, length, out, family, _, _) in enumerate(arrivals):
        name = f"r{i}"
        if ends[name] == [FinishReason.ERROR]:
            assert length >= core.max_context_tokens
            continue
        reference.add(Submit(name, _prompt(length, family), _greedy(out)))
        expected: list[int] = []
        while reference.has_work():
            expected += [token for delta in reference.step().deltas for token in delta.token_ids]
        assert produced.get(name, []) == expected[: len(produced.get(name, []))]
        if ends[name] == [FinishReason.LENGTH]:
            room = core.max_context_tokens - length
            assert len(produced[name]) == min(out, room)


def _greedy(count: int) -> SamplingParams:
    return SamplingParams(max_tokens=count, temperature=0.0)


def _prompt(length: int, family: int) -> list[int]:
    return [(family * 17 + i * 3) % 90 for i in range(length)]
