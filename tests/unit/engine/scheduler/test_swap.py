"""Preempted requests' pages in host memory: exactly what they were, where that is the cheaper, and told of."""

from __future__ import annotations

import pytest
import torch

from engine.devices.cpu import CpuDevice
from engine.kv.buffer import allocate_buffer
from engine.kv.layout import solve_layout
from engine.kv.manager import PageMove
from engine.kv.swap import HostPages
from engine.messages import Knobs, Submit
from tests.fakes.engine_models import core_of
from tests.fakes.engine_runs import HYBRID, PLAIN, greedy, prompt, run, tokens

CROWDED = Knobs(max_running=16, token_budget=32, prefill_chunk=16)


def crowd() -> list[Submit]:
    return [Submit(f"r{i}", prompt(11 + 5 * i, i), greedy(25), tenant="ab"[i % 2]) for i in range(16)]


@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlap"])
@pytest.mark.parametrize("cache", [False, True], ids=["no cache", "cache"])
@pytest.mark.parametrize(("spec", "pages"), [(PLAIN, 40), (HYBRID, 60)], ids=["one group", "window groups"])
def test_swapped_requests_go_on_with_the_same_tokens_and_compute_nothing_again(spec, pages, cache, overlap):
    submits = crowd()
    alone = {s.request_id: tokens(run(core_of(spec), s)[s.request_id]) for s in submits}
    knobs = Knobs(max_running=16, token_budget=32, prefill_chunk=16, prefix_cache=cache)
    core = core_of(spec, large_pages=pages, knobs=knobs, swap_large_pages=200, overlap=overlap)
    core._host.bytes_per_s = float("inf")
    computed = []
    core.on_step = lambda chunks: computed.extend(chunk.num_tokens for chunk in chunks)
    seen = run(core, *submits)
    assert {name: tokens(deltas) for name, deltas in seen.items()} == alone
    stats = core.stats()
    assert stats.swap_outs_total == stats.swap_ins_total == stats.preemptions_total > 0
    assert stats.swapped_pages == 0
    if not cache and not overlap:
        needed = sum(len(s.prompt_token_ids) + 25 - 1 for s in submits)
        assert sum(computed) == needed, "each token is computed once, however often its request gave way"


def test_swap_where_host_memory_is_short_keeps_what_fits_and_computes_the_rest_again():
    submits = crowd()
    alone = {s.request_id: tokens(run(core_of(PLAIN), s)[s.request_id]) for s in submits}
    core = core_of(PLAIN, large_pages=40, knobs=CROWDED, swap_large_pages=12)
    core._host.bytes_per_s = float("inf")
    assert {name: tokens(deltas) for name, deltas in run(core, *submits).items()} == alone
    stats = core.stats()
    assert 0 < stats.swap_outs_total < stats.preemptions_total


def test_swap_is_left_alone_where_computing_again_is_estimated_to_be_cheaper():
    core = core_of(PLAIN, large_pages=40, knobs=CROWDED, swap_large_pages=200)
    core._host.bytes_per_s = 1.0  # of a cable that somebody stepped on
    core.scheduler.pace.prompt_token_s = 1e-6
    core.scheduler.pace.note_chunks = lambda chunks, step_s: None  # type: ignore[method-assign]
    run(core, *crowd())
    assert core.stats().preemptions_total > 0
    assert core.stats().swap_outs_total == 0


def test_swapped_requests_that_are_aborted_give_host_memory_back():
    core = core_of(PLAIN, large_pages=40, knobs=CROWDED, swap_large_pages=200)
    core._host.bytes_per_s = float("inf")
    for submit in crowd():
        core.add(submit)
    while core.stats().swapped_pages == 0:
        core.step()
    core.abort_all()
    core.step()
    assert core.stats().swapped_pages == 0
    core._host.check_integrity([])


def test_host_pages_hold_every_groups_pages_exactly_and_measure_a_rate():
    layout = solve_layout(HYBRID, bytes_per_element=4, page_tokens=4)
    assert len({group.ratio for group in layout.groups}) > 1, "sizes were meant to differ"
    buffer = allocate_buffer(20 * layout.large_page_elements, torch.float32, torch.device("cpu"))
    buffer.copy_(torch.arange(len(buffer), dtype=torch.float32))
    before = buffer.clone()
    host = HostPages(layout, buffer, 12 * layout.large_page_elements * 4, CpuDevice())
    assert torch.equal(buffer, before), "measuring leaves the pages as they were"
    assert host.bytes_per_s > 1e6
    assert host.copy_s([1] * len(layout.groups)) > 0
    blocks = [{block: 1 + 3 * block + group.index for block in range(2 * group.ratio)} for group in layout.groups]
    blocks = [dict(list(pages.items())[: 2 + index]) for index, pages in enumerate(blocks)]
    saved = host.save(9, blocks)
    assert host.num_saved == saved.num_pages == sum(map(len, blocks))
    buffer.zero_()
    moves = [PageMove(g, block, page + 1) for g, pages in enumerate(blocks) for block, page in pages.items()]
    host.load(saved, moves)
    for move in moves:
        size = layout.groups[move.group].small_page_elements
        old = blocks[move.group][move.block]
        assert torch.equal(
            buffer[move.page * size : (move.page + 1) * size], before[old * size : (old + 1) * size]
        ) or any(other != move and _overlap(layout, other, move) for other in moves)
    host.drop(saved)
    host.check_integrity([])
    assert not host.fits([13 * group.ratio for group in layout.groups])


def _overlap(layout, one: PageMove, other: PageMove) -> bool:
    def span(move):
        size = layout.groups[move.group].small_page_elements
        return move.page * size, (move.page + 1) * size

    (a, b), (c, d) = span(one), span(other)
    return a < d and c < b
