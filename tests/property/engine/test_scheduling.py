"""Tiny pools and everything at random: every request ends once, in bounded steps, with its own tokens.

BAYARD_SCHEDULING_RUNS=10000 makes a long run of it; the ordinary one is short.
"""

from __future__ import annotations

import os
from functools import cache

import torch
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from engine.core import EngineCore
from engine.messages import FinishReason, Knobs, SamplingParams, Submit
from engine.spec.model_spec import AttentionKind
from tests.fakes.engine_models import GraphDevice, HashModel, attention, core_of, spec_of
from tests.fakes.engine_runs import greedy, run

RUNS = int(os.environ.get("BAYARD_SCHEDULING_RUNS", "250"))
LONGEST_OUTPUT = 12
MOST_STEPS = 5_000

SPECS = [
    spec_of(attention()),
    spec_of(attention(AttentionKind.SLIDING, window=6)),
    spec_of(attention(), attention(AttentionKind.SLIDING, window=6)),
    spec_of(attention(), attention(), attention(AttentionKind.SLIDING, heads=3, window=9)),
]

arrival = st.fixed_dictionaries(
    {
        "wait": st.integers(0, 12),  # steps after the one before it
        "length": st.integers(1, 30),
        "output": st.integers(1, LONGEST_OUTPUT),
        "family": st.integers(0, 2),  # of prompts with a common beginning
        "priority": st.integers(0, 2),
        "tenant": st.sampled_from(["", "acme", "lab"]),
        "weight": st.sampled_from([1.0, 1.0, 3.0]),
        "copies": st.sampled_from([1, 1, 1, 2, 4]),  # of one prompt group
        "deadline": st.none() | st.integers(1, 40),  # steps
        "abort": st.none() | st.integers(0, 20),  # steps after its arrival
    }
)
knobs_of = st.builds(
    Knobs,
    max_running=st.integers(1, 6),
    token_budget=st.integers(1, 24),
    prefill_chunk=st.integers(1, 16),
    prefix_cache=st.booleans(),
    speculation_tokens=st.sampled_from([0, 0, 3]),
    cache_share=st.sampled_from([1.0, 1.0, 0.3, 0.0]),
    max_step_ms=st.sampled_from([0.0, 0.01]),
    ahead_tokens=st.sampled_from([0, 0, 8, 200]),
)


class Tight(HashModel):
    """A model whose device has memory for so many tokens in a step."""

    most_tokens = 10_000

    def forward(self, batch):
        if batch.num_tokens > self.most_tokens:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return super().forward(batch)


class Steps:
    """A clock that counts steps as seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@settings(max_examples=RUNS, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    kind=st.integers(0, len(SPECS) - 1),
    large_pages=st.integers(16, 40),
    swap=st.sampled_from([None, "estimated", "always"]),
    swap_pages=st.integers(1, 30),
    arrivals=st.lists(arrival, min_size=1, max_size=10),
    knobs=st.lists(knobs_of, min_size=1, max_size=3),  # turned every 15 steps
    overlap=st.booleans(),
    graphs=st.booleans(),
    habit=st.booleans(),
    most_tokens=st.sampled_from([10_000, 10_000, 10_000, 6]),
)
def test_random_arrivals_all_end_once_and_leave_an_empty_pool(
    kind, large_pages, swap, swap_pages, arrivals, knobs, overlap, graphs, habit, most_tokens
):
    clock = Steps()
    model = Tight(SPECS[kind], habit=habit)
    model.most_tokens = most_tokens
    core = core_of(
        SPECS[kind],
        large_pages=large_pages,
        knobs=knobs[0],
        overlap=overlap,
        model=model,
        device=GraphDevice() if graphs else None,
        swap_large_pages=swap_pages if swap else 0,
        clock=clock,
    )
    core.scheduler.speculation.heeds_cost = False  # guesses come whether they pay on this machine or not
    if swap == "always":
        core._host.bytes_per_s = float("inf")
    submits = _submits(arrivals)
    produced: dict[str, list[int]] = {}
    ends: dict[str, list[tuple[FinishReason, str | None]]] = {}
    aborts: dict[int, list[str]] = {}
    pending = list(zip(arrivals, submits, strict=True))
    wait = pending[0][0]["wait"]
    while pending or core.has_work():
        step = int(clock.now)
        while pending and wait <= 0:
            about, copies = pending.pop(0)
            wait = pending[0][0]["wait"] if pending else 0
            for submit in copies:
                core.add(submit)
                if about["abort"] is not None:  # copies at different times
                    aborts.setdefault(step + about["abort"] + 3 * len(aborts), []).append(submit.request_id)
        wait -= 1
        for name in aborts.pop(step, []):
            core.abort(name)
            core.scheduler.check_integrity()
        if step % 15 == 14:
            core.set_knobs(knobs[step // 15 % len(knobs)])
        if core.has_work():
            for delta in core.step().deltas:
                produced.setdefault(delta.request_id, []).extend(delta.token_ids)
                if delta.finish is not None:
                    error = delta.error.code if delta.error is not None else None
                    ends.setdefault(delta.request_id, []).append((delta.finish, error))
            core.scheduler.check_integrity()
        clock.now += 1
        assert clock.now < MOST_STEPS, "no progress in bounded steps"
    stats = core.stats()
    for what in ("preemptions_total", "swap_ins_total", "deadlines_total", "draft_accepted_total"):
        event(f"{what}: {'some' if getattr(stats, what) else 'none'}")
    assert all(len(reasons) == 1 for reasons in ends.values())
    assert len(ends) == sum(map(len, submits))
    _check_all_is_given_back(core)
    for about, copies in zip(arrivals, submits, strict=True):
        expected = _alone(kind, habit, about["length"], about["family"])
        for submit in copies:
            finish, error = ends[submit.request_id][0]
            tokens = produced.get(submit.request_id, [])
            assert tokens == expected[: len(tokens)]
            if error is not None:
                assert error == "deadline_exceeded" or about["length"] >= core.max_context_tokens
            if error == "deadline_exceeded":
                assert about["deadline"] is not None
            if finish is FinishReason.LENGTH:
                assert len(tokens) == min(about["output"], core.max_context_tokens - about["length"])
            if finish is FinishReason.ABORT:
                assert about["abort"] is not None


def _check_all_is_given_back(core: EngineCore) -> None:
    assert core.kv.num_active == 0
    assert core.stats().swapped_pages == 0
    assert core.stats().swap_ins_total <= core.stats().swap_outs_total <= core.stats().preemptions_total
    assert not core.scheduler._groups._groups
    assert not list(core.scheduler._waiting)


def _submits(arrivals: list[dict]) -> list[list[Submit]]:
    found = []
    for i, about in enumerate(arrivals):
        found.append(
            [
                Submit(
                    f"r{i}.{copy}",
                    _prompt(about["length"], about["family"]),
                    SamplingParams(max_tokens=about["output"], temperature=0.0),
                    priority=about["priority"],
                    tenant=about["tenant"],
                    weight=about["weight"],
                    cache_salt=about["tenant"],
                    deadline_s=about["deadline"],
                    prompt_group=f"g{i}" if about["copies"] > 1 else "",
                )
                for copy in range(about["copies"])
            ]
        )
    return found


@cache
def _alone(kind: int, habit: bool, length: int, family: int) -> list[int]:
    """What the request writes when nobody else is there."""
    core = core_of(SPECS[kind], large_pages=400, model=HashModel(SPECS[kind], habit=habit))
    deltas = run(core, Submit("a", _prompt(length, family), greedy(LONGEST_OUTPUT)))["a"]
    return [token for delta in deltas for token in delta.token_ids]


def _prompt(length: int, family: int) -> list[int]:
    return [(family * 17 + i * 3) % 90 for i in range(length)]
