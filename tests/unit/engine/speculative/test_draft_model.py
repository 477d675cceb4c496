"""A second model that guesses: its guesses change nothing but the number of steps, and it keeps its pages in order."""

from __future__ import annotations

import pytest
import torch

from engine.devices.cpu import CpuDevice
from engine.kv.layout import solve_layout
from engine.messages import Knobs, SamplingParams, Submit
from engine.speculative.draft_model import DraftModel
from tests.fakes.engine_models import GraphDevice, HashModel, core_of
from tests.fakes.engine_runs import HYBRID, PLAIN, preempt_often, prompt, run, tokens

KNOBS = Knobs(max_running=6, token_budget=64, prefill_chunk=16, speculation_tokens=4)


def drafter(spec, *, pages=400, model=None, chunk_tokens=24, device=None) -> DraftModel:
    return DraftModel(
        model or HashModel(spec, habit=True),
        solve_layout(spec, bytes_per_element=4, page_tokens=4),
        num_large_pages=pages,
        kv_dtype=torch.float32,
        device=device or CpuDevice(),
        max_context_tokens=4096,
        vocab_size=spec.vocab_size,
        target_vocab_size=spec.vocab_size,
        chunk_tokens=chunk_tokens,
    )


def guessing(spec, draft_model: DraftModel, **more):
    core = core_of(spec, knobs=KNOBS, model=HashModel(spec, habit=True), **more)
    core.scheduler.speculation.heeds_cost = False
    core.scheduler.speculation.drafters = [draft_model]
    return core


def submits(count=8):
    kinds = [{"temperature": 0.0}, {"temperature": 0.9}]
    return [
        Submit(f"r{i}", prompt(3 + 9 * i, i), SamplingParams(max_tokens=22, seed=i, **kinds[i % 2]))
        for i in range(count)
    ]


@pytest.mark.parametrize("device", [CpuDevice, GraphDevice], ids=["plain", "graphs"])
@pytest.mark.parametrize("spec", [PLAIN, HYBRID], ids=["plain", "hybrid"])
@pytest.mark.parametrize("large_pages", [60, 400], ids=["preempting", "roomy"])
def test_tokens_equal_those_without_and_a_like_model_is_mostly_right(spec, large_pages, device):
    plain = core_of(spec, knobs=Knobs(max_running=6, token_budget=64, prefill_chunk=16), large_pages=400,
                    model=HashModel(spec, habit=True))  # fmt: skip
    expected = {name: tokens(deltas) for name, deltas in run(plain, *submits()).items()}
    second = drafter(spec, device=device())
    core = guessing(spec, second, large_pages=large_pages, device=device())
    if large_pages < 400:
        preempt_often(core)
    seen = run(core, *submits())
    assert {name: tokens(deltas) for name, deltas in seen.items()} == expected
    stats = core.stats()
    assert stats.draft_accepted_total > 0.4 * stats.draft_tokens_total
    if large_pages == 400:
        assert stats.step < plain.stats().step * 0.7
    second.check_integrity()
    assert second.kv.num_active == 0


@pytest.mark.parametrize("spec", [PLAIN, HYBRID], ids=["plain", "hybrid"])
def test_draft_model_guesses_what_the_same_model_says(spec):
    """The same model, greedy: every guess is right, through prompts taken in over several steps."""
    second = drafter(spec, chunk_tokens=7)
    core = guessing(spec, second, large_pages=400)
    run(core, Submit("a", prompt(90), SamplingParams(max_tokens=40, temperature=0.0)))
    stats = core.stats()
    assert stats.draft_tokens_total > 10
    assert stats.draft_accepted_total == stats.draft_tokens_total


def test_draft_model_that_is_always_wrong_changes_nothing():
    class Wrong(HashModel):
        def forward(self, batch):
            return -super().forward(batch)

    core = guessing(PLAIN, drafter(PLAIN, model=Wrong(PLAIN)), large_pages=400)
    plain = core_of(PLAIN, large_pages=400, model=HashModel(PLAIN, habit=True))
    expected = {name: tokens(deltas) for name, deltas in run(plain, *submits(4)).items()}
    assert {name: tokens(deltas) for name, deltas in run(core, *submits(4)).items()} == expected


def test_draft_model_without_pages_guesses_nothing_and_stops_nobody():
    second = drafter(PLAIN, pages=6)
    core = guessing(PLAIN, second, large_pages=400)
    seen = run(core, *submits())
    assert all(len(tokens(deltas)) == 22 for deltas in seen.values())
    second.check_integrity()
    assert second.kv.num_active == 0


def test_guesses_outside_the_models_vocabulary_are_not_made():
    second = drafter(PLAIN)
    second._target_vocab_size = 0
    core = guessing(PLAIN, second, large_pages=400)
    run(core, *submits(2))
    assert core.stats().draft_tokens_total == 0


def test_abort_frees_the_shadow():
    second = drafter(PLAIN)
    core = guessing(PLAIN, second, large_pages=400)
    core.add(Submit("a", prompt(9), SamplingParams(max_tokens=500, temperature=0.0)))
    for _ in range(6):
        core.step()
    assert second.kv.num_active > 0
    core.abort("a")
    core.step()
    assert second.kv.num_active == 0


@pytest.mark.parametrize("spec", [PLAIN, HYBRID], ids=["plain", "hybrid"])
def test_guesses_are_the_draft_models_own_words_also_after_wrong_ones(spec):
    other = HashModel(spec)  # without the habit: it is often wrong
    second = drafter(spec, model=other)
    core = guessing(spec, second, large_pages=400)
    proposed: list[tuple[list[int], list[int]]] = []
    propose = second.propose

    def watched(wishes):
        found = propose(wishes)
        proposed.extend((list(request.token_ids), found[request.id]) for request, _ in wishes if request.id in found)
        return found

    second.propose = watched
    run(core, *submits(3))
    stats = core.stats()
    assert 0 < stats.draft_accepted_total < stats.draft_tokens_total
    assert len(proposed) > 8
    for tokens_then, draft in proposed:
        params = SamplingParams(max_tokens=len(draft), temperature=0.0)
        alone = run(core_of(spec, large_pages=400, model=other), Submit("a", tokens_then, params))
        assert tokens(alone["a"]) == draft
