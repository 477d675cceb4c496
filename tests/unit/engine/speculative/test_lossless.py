"""Guesses change no text, at temperature 0, drawn or constrained, and drawn tokens keep their distribution."""

from __future__ import annotations

import json

import pytest
import torch

from engine.messages import FinishReason, Grammar, GrammarKind, Knobs, SamplingParams, Submit
from engine.runner.sampler import sample
from engine.scheduler.request import Request
from tests.fakes.engine_models import GraphDevice, HashModel, core_of
from tests.fakes.engine_runs import HYBRID, PLAIN, greedy, preempt_often, prompt, run, tokens
from tests.fakes.schemas import SCHEMAS
from tests.fakes.tiny_text import NoiseModel, tiny_compiler, tiny_text

MODES = {"plain": {}, "overlap": {"overlap": True}, "graphs": {"overlap": True, "device": GraphDevice}}
GUESSING = Knobs(max_running=8, token_budget=64, prefill_chunk=32, speculation_tokens=5)


def guessing_core(spec, mode="plain", **more):
    options = dict(MODES[mode])
    device = options.pop("device", None)
    core = core_of(spec, device=device() if device else None, knobs=more.pop("knobs", GUESSING), **options, **more)
    core.scheduler.speculation.heeds_cost = False
    return core


def test_two_hundred_prompts_greedy_and_drawn_equal_plain_ones():
    model = HashModel(PLAIN, habit=True)
    kinds = [{"temperature": 0.0}, {"temperature": 0.8}, {"temperature": 1.0, "top_p": 0.9}, {"temperature": 0.0}]
    submits = [
        Submit(f"r{i}", prompt(3 + i % 29, i), SamplingParams(max_tokens=16, seed=i, **kinds[i % 4]))
        for i in range(200)
    ]
    knobs = Knobs(max_running=8, token_budget=64, prefill_chunk=32)
    plain = run(core_of(PLAIN, large_pages=400, model=model, knobs=knobs), *submits)
    core = guessing_core(PLAIN, large_pages=400, model=model)
    guessed = run(core, *submits)
    assert {n: tokens(d) for n, d in guessed.items()} == {n: tokens(d) for n, d in plain.items()}
    stats = core.stats()
    assert stats.draft_accepted_total > 200


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("spec", [PLAIN, HYBRID], ids=["plain", "hybrid"])
def test_drawn_tokens_with_bias_min_tokens_and_preemption_equal_plain_ones(mode, spec):
    model = HashModel(spec, habit=True)
    kinds = [{"logit_bias": {3: 1.5}}, {"min_tokens": 9, "stop_token_ids": (4, 9)}, {"top_k": 5}, {"min_p": 0.1}]
    submits = [
        Submit(f"r{i}", prompt(5 + 6 * i, i), SamplingParams(max_tokens=24, seed=i, temperature=0.7, **kinds[i % 4]))
        for i in range(8)
    ]
    plain = run(core_of(spec, large_pages=400, model=model), *submits)
    core = guessing_core(spec, mode, large_pages=44, model=model)
    preempt_often(core)
    guessed = run(core, *submits)
    assert {n: tokens(d) for n, d in guessed.items()} == {n: tokens(d) for n, d in plain.items()}
    assert core.scheduler.preemptions_total > 0
    assert core.stats().draft_accepted_total > 0


@pytest.mark.parametrize("mode", MODES)
def test_constrained_output_with_guesses_equals_that_without(mode):
    text = tiny_text()
    vocab = text.vocab_size
    spec = PLAIN.__class__(**{**{f: getattr(PLAIN, f) for f in PLAIN.__dataclass_fields__}, "vocab_size": vocab})
    submits = []
    for n, value in enumerate(SCHEMAS[:24]):
        grammar = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(value))
        params = {"temperature": 0.0} if n % 2 else {"temperature": 1.0, "seed": n}
        sampling = SamplingParams(max_tokens=900, stop_token_ids=text.stop_token_ids, grammar=grammar, **params)
        submits.append(Submit(f"r{n}", [65, 66 + n], sampling))

    def outputs(core):
        seen = {submit.request_id: [] for submit in submits}
        for submit in submits:
            core.add(submit)
        while core.has_work() or core.is_compiling:
            for delta in core.step().deltas if core.has_work() else ():
                seen[delta.request_id].append(delta)
        assert all(deltas[-1].finish is FinishReason.STOP for deltas in seen.values())
        return {name: tokens(deltas) for name, deltas in seen.items()}

    model = NoiseModel(text, vocab)
    compiler = tiny_compiler(text, vocab)
    plain = outputs(core_of(spec, large_pages=900, model=model, grammars=compiler))
    core = guessing_core(spec, mode, large_pages=900, model=model, grammars=compiler)
    assert outputs(core) == plain
    assert core.stats().draft_accepted_total > 50, "keys and punctuation are forced, so guesses of them are right"


def test_drawn_tokens_after_a_guess_follow_the_models_distribution():
    """Chi-square over 20,000 seeds: the first token, and the second where the first was the guess."""
    torch.manual_seed(3)
    logits = torch.randn(2, 6)
    probs = torch.softmax(logits, -1)
    guess = int(probs[0].argsort()[-2])
    params = SamplingParams(max_tokens=9, temperature=1.0)
    requests = [Request(str(n), [1, 2], 2, params, n * 7919, 0, n, None) for n in range(20_000)]
    results = sample(logits.repeat(len(requests), 1), requests, [(guess,)] * len(requests))
    first = torch.bincount(torch.tensor([r.token_id for r in results]), minlength=6)
    second = torch.bincount(torch.tensor([r.followed[0] for r in results if r.followed]), minlength=6)
    assert int(second.sum()) == int(first[guess])
    for counts, expected in ((first, probs[0]), (second, probs[1])):
        wanted = expected * counts.sum()
        statistic = float(((counts - wanted) ** 2 / wanted).sum())
        assert statistic < 20.5, "0.1 % of five degrees of freedom"


def test_length_and_stop_end_within_a_draft():
    model = HashModel(PLAIN, habit=True)
    whole = tokens(run(core_of(PLAIN, model=model), Submit("a", prompt(9), greedy(40)))["a"])
    for count in range(1, 12):
        short = run(guessing_core(PLAIN, model=model), Submit("a", prompt(9), greedy(count)))["a"]
        assert tokens(short) == whole[:count]
        assert short[-1].usage.output_tokens == count
