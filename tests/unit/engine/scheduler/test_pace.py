"""What steps cost, learnt from steps."""

from __future__ import annotations

import pytest

from engine.messages import Knobs, Submit
from engine.scheduler.pace import StepPace
from tests.fakes.engine_models import core_of
from tests.fakes.engine_runs import PLAIN, greedy, prompt


def cost_s(prompt_tokens: int, decodes: int) -> float:
    """A machine with fixed costs, which differ between steps with prompts and without."""
    return (0.004 if prompt_tokens == 0 else 0.012) + 27e-6 * prompt_tokens + 1e-5 * decodes


def test_slices_of_a_prompt_come_to_just_under_the_limit():
    pace = StepPace()
    assert pace.prompt_tokens_within(0.05) is None
    for _ in range(10):
        pace.note(0, 32, cost_s(0, 32))
    pace.note(2048, 32, 3.0)  # something was compiled
    steps = []
    for _ in range(20):
        tokens = pace.prompt_tokens_within(0.05)
        steps.append(cost_s(tokens, 32))
        pace.note(tokens, 32, steps[-1])
    assert max(steps) <= 0.055
    assert 0.040 <= steps[-1] <= 0.050


def test_slow_decodes_leave_prompts_as_much_time_again():
    pace = StepPace()
    pace.note(0, 4, 0.2)
    pace.note(100, 0, 1.0)
    assert pace.prompt_tokens_within(0.05) == 20


def test_a_rate_needs_a_step_with_a_prompt():
    pace = StepPace()
    pace.note(0, 1, 0.01)
    assert pace.prefill_tok_s is None
    pace.note(100, 0, 0.05)
    assert pace.prefill_tok_s == pytest.approx(2000)


def test_a_limit_shortens_slices_while_streams_run_and_only_then():
    knobs = Knobs(max_running=4, token_budget=512, prefill_chunk=256, max_step_ms=50.0)
    core = core_of(PLAIN, large_pages=600, knobs=knobs)
    seen: list[list[tuple[str, int]]] = []
    core.on_step = lambda chunks: seen.append([(chunk.request.id, chunk.num_tokens) for chunk in chunks])
    core.scheduler.pace.note_chunks = lambda chunks, step_s: None  # type: ignore[method-assign]
    core.scheduler.pace.decode_s, core.scheduler.pace.prompt_token_s = 0.005, 0.001
    core.add(Submit("first", prompt(400), greedy(60)))
    core.step()
    assert seen[-1] == [("first", 256)]
    core.step()
    core.add(Submit("second", prompt(400, 2), greedy(1)))
    core.step()
    assert seen[-1] == [("first", 1), ("second", 40)]
    core.set_knobs(Knobs(max_running=4, token_budget=512, prefill_chunk=256))
    core.step()
    assert seen[-1] == [("first", 1), ("second", 256)]
