"""Crowds with and without grammars, aborted, preempted and guessed for: each ends once, and as it would alone."""

from __future__ import annotations

import json
import os
import time

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.messages import FinishReason, Grammar, GrammarKind, Knobs, SamplingParams, Submit
from tests.fakes.engine_models import GraphDevice, attention, core_of, spec_of
from tests.fakes.engine_runs import preempt_often
from tests.fakes.schemas import SCHEMAS
from tests.fakes.tiny_text import NoiseModel, tiny_compiler, tiny_text

RUNS = int(os.environ.get("BAYARD_GRAMMAR_RUNS", "12"))  # of each mode
TEXT = tiny_text()
VOCAB = TEXT.vocab_size
SPEC = spec_of(attention(), vocab=VOCAB, context=2048)
MODEL = NoiseModel(TEXT, VOCAB)
CHOICES = [n for n in range(len(SCHEMAS)) if n not in (42, 43)]  # without end where the noise has it so
ALONE: dict[tuple[object, ...], list[int]] = {}


def core_in(mode: str, guesses: int):
    device = GraphDevice() if mode == "graphs" else None
    knobs = Knobs(max_running=6, token_budget=48, prefill_chunk=16, speculation_tokens=guesses)
    core = core_of(
        SPEC, large_pages=900, model=MODEL, device=device, overlap=mode != "plain", knobs=knobs,
        grammars=tiny_compiler(TEXT, VOCAB),
    )  # fmt: skip
    core.scheduler.speculation.heeds_cost = False
    return core


def submit_of(name: str, kind: int | None, length: int, seed: int | None) -> Submit:
    grammar = None if kind is None else Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMAS[kind]))
    sampling = SamplingParams(
        max_tokens=30 if kind is None else 900,
        temperature=0.0 if seed is None else 0.9,
        seed=seed,
        stop_token_ids=TEXT.stop_token_ids,
        grammar=grammar,
    )
    return Submit(name, [33 + (length * 7 + n) % 90 for n in range(length)], sampling)


def run(core, submits, aborted=()):
    out = {submit.request_id: [] for submit in submits}
    ends = {}
    waiting, steps = list(submits), 0
    ends_mono = time.monotonic() + 60
    while waiting or core.has_work() or core.is_compiling:
        assert time.monotonic() < ends_mono
        if waiting:
            core.add(waiting.pop(0))
        steps += 1
        for at, name in aborted:
            if at == steps:
                core.abort(name)
        for delta in core.step().deltas if core.has_work() else ():
            assert delta.request_id not in ends, "nothing comes after the end"
            out[delta.request_id] += delta.token_ids
            if delta.finish is not None:
                ends[delta.request_id] = delta.finish
        core.scheduler.check_integrity()
    assert set(ends) == set(out)
    assert core.kv.num_active == 0
    return out, ends


requests = st.tuples(
    st.one_of(st.none(), st.sampled_from(CHOICES)), st.integers(1, 40), st.one_of(st.none(), st.integers(0, 3))
)


@pytest.mark.parametrize("mode", ["plain", "overlap", "graphs"])
@settings(max_examples=RUNS, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    crowd=st.lists(requests, min_size=1, max_size=9),
    aborts=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 8)), max_size=3),
    guesses=st.sampled_from([0, 1, 5]),
    preempts=st.booleans(),
)
def test_each_of_a_crowd_ends_once_and_says_what_it_says_alone(mode, crowd, aborts, guesses, preempts):
    core = core_in(mode, guesses)
    if preempts:
        preempt_often(core)
    submits = [submit_of(f"r{n}", *one) for n, one in enumerate(crowd)]
    out, ends = run(core, submits, [(at, f"r{n}") for at, n in aborts])
    for submit, one in zip(submits, crowd, strict=True):
        if one not in ALONE:
            ALONE[one] = run(core_in("plain", 0), [submit_of("r", *one)])[0]["r"]
        written, finish = out[submit.request_id], ends[submit.request_id]
        if finish is FinishReason.ABORT:
            assert written == ALONE[one][: len(written)]
            continue
        assert written == ALONE[one]
        if one[0] is not None and finish is FinishReason.STOP:
            jsonschema.validate(json.loads(TEXT.decode(written)), SCHEMAS[one[0]])
