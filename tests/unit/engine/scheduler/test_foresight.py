"""An admission looks ahead: a prompt whose end does not fit beside the others waits, and is not computed in vain."""

from __future__ import annotations

import pytest

from engine.messages import Knobs, SamplingParams, Submit
from engine.scheduler.foresight import SMALLEST_CHUNK, chunk_within
from tests.fakes.engine_models import attention, core_of, spec_of


def run(ahead_tokens: int) -> tuple[int, int, int]:
    """(preemptions, most at once, prompt tokens computed) of ten prompts of which two fit a pool of 40 pages."""
    knobs = Knobs(max_running=10, token_budget=64, prefill_chunk=64, prefix_cache=False, ahead_tokens=ahead_tokens)
    core = core_of(spec_of(attention()), large_pages=41, knobs=knobs)
    computed, most = 0, 0

    def watch(chunks: list[object]) -> None:
        nonlocal computed, most
        computed += sum(chunk.num_tokens for chunk in chunks)  # type: ignore[attr-defined]
        most = max(most, len(core.scheduler.running))

    core.on_step = watch  # type: ignore[assignment]
    length = 15 * core.layout.page_tokens
    for i in range(10):
        sampling = SamplingParams(max_tokens=4 * core.layout.page_tokens, temperature=0.0, ignore_eos=True)
        core.add(Submit(f"r{i}", [1 + i % 7] * length, sampling))
    while core.has_work():
        core.step()
    return core.scheduler.preemptions_total, most, computed


def test_prompts_that_do_not_fit_wait_instead_of_being_computed_again():
    preemptions, most, computed = run(ahead_tokens=1000)
    assert preemptions == 0
    assert most == 2
    blind_preemptions, _, blind_computed = run(ahead_tokens=0)
    assert blind_preemptions > 0, "without foresight this pool is too small"
    assert computed < blind_computed


def test_chunk_of_windowed_layers_takes_a_small_part_of_the_pool():
    full, windowed = attention(), attention(window=32)
    core = core_of(spec_of(full, windowed), large_pages=4096, knobs=Knobs())
    chunk = chunk_within(core.layout, 4096)
    assert chunk is not None
    assert chunk >= SMALLEST_CHUNK
    small = core.layout.large_pages_for(100_000, chunk) - core.layout.large_pages_for(100_000)
    assert small <= 4096 / 16 + 2
    plain = core_of(spec_of(full), large_pages=64, knobs=Knobs())
    assert chunk_within(plain.layout, 64) is None


@pytest.mark.parametrize("ahead_tokens", [0, 256])
def test_request_larger_than_what_is_free_still_runs_alone(ahead_tokens):
    knobs = Knobs(max_running=4, token_budget=64, prefill_chunk=64, prefix_cache=False, ahead_tokens=ahead_tokens)
    core = core_of(spec_of(attention()), large_pages=9, knobs=knobs)
    length = 7 * core.layout.page_tokens
    core.add(Submit("large", [3] * length, SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True)))
    tokens = 0
    while core.has_work():
        tokens += sum(len(delta.token_ids) for delta in core.step().deltas)
    assert tokens == 4
