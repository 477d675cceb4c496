"""Decode steps as graphs: when and in what order they are captured, what pads them, what they share."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.kv.manager import NULL_PAGE
from engine.messages import Knobs, Submit
from engine.runner.graphs import BUCKETS, DecodeGraphs
from engine.runner.inputs import StepArrays
from tests.fakes.engine_models import GraphDevice, core_of
from tests.fakes.engine_runs import HYBRID, PLAIN, greedy, prompt, run, tokens


class Recording(GraphDevice):
    """What was captured, in order: rows, and the memory it was given and gave."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[tuple[int, object, object]] = []

    def capture_graph(self, run, memory):
        graph, result, _ = super().capture_graph(run, memory)
        shared = memory or object()
        self.order.append((len(result), memory, shared))
        return graph, result, shared


def test_nothing_is_captured_until_there_is_time_and_then_the_largest_first_in_one_memory():
    device = Recording()
    core = core_of(PLAIN, device=device, knobs=Knobs(max_running=70, token_budget=128, prefill_chunk=16))
    assert not device.order, "starting up captures nothing"
    assert core.prepare()
    assert [rows for rows, *_ in device.order] == [96], "one at a time"
    while core.runner.graphs.missing(70) is not None:
        assert core.prepare()
    rows = [rows for rows, *_ in device.order]
    assert rows == sorted((size for size in BUCKETS if size <= 96), reverse=True)
    first = device.order[0]
    assert first[1] is None
    assert all(given is first[2] and shared is first[2] for _, given, shared in device.order[1:])
    while core.prepare():
        pass
    captured = len(device.order)
    run(core, *(Submit(f"r{i}", prompt(5, i), greedy(4)) for i in range(9)))
    assert len(device.order) == captured, "nothing is left to capture while requests run"


def test_a_size_that_is_needed_first_is_captured_then():
    device = Recording()
    core = core_of(PLAIN, device=device)
    plain = run(core_of(PLAIN), *(Submit(f"r{i}", prompt(5, i), greedy(6)) for i in range(3)))
    found = run(core, *(Submit(f"r{i}", prompt(5, i), greedy(6)) for i in range(3)))
    assert {name: tokens(deltas) for name, deltas in found.items()} == {n: tokens(d) for n, d in plain.items()}
    assert {rows for rows, *_ in device.order} <= {1, 2, 4}
    assert device.order


@pytest.mark.parametrize("spec", [PLAIN, HYBRID], ids=["plain", "hybrid"])
def test_rows_that_pad_a_batch_touch_the_null_page_and_the_spare_place_alone(spec):
    core = core_of(spec, large_pages=60, device=GraphDevice())
    graphs: DecodeGraphs = core.runner.graphs
    pool = core.runner._ensure_pool()
    core.runner._ensure_logits(8)
    groups = len(core.layout.groups)
    arrays = StepArrays(
        token_ids=np.array([5, 6, 7, 8, 9], np.int32),
        positions=np.array([0, 3, 4, 5, 9], np.int32),
        slots=np.arange(5, dtype=np.int32),
        query_starts=np.arange(6, dtype=np.int32),
        context_lens=np.array([1, 4, 5, 6, 10], np.int32),
        logit_rows=np.arange(5, dtype=np.int32),
        tables=[np.full((5, graphs._max_blocks), 7, np.int32) for _ in range(groups)],
        write_pages=[np.full(5, 7, np.int32) for _ in range(groups)],
        write_offsets=np.array([0, 3, 0, 1, 1], np.int32),
    )
    with torch.inference_mode():
        graphs.prepare(8, pool)
        before, places = core.pool.clone(), pool.clone()
        picked = graphs.replay(arrays, pool)
    assert picked.shape == (5,)
    batch = graphs._captured[8].inputs
    assert batch.context_lens.tolist() == [1, 4, 5, 6, 10, 1, 1, 1]
    for group in batch.groups:
        assert group.write_pages.tolist() == [7] * 5 + [NULL_PAGE] * 3
        assert group.block_tables[5:, 0].tolist() == [NULL_PAGE] * 3
    slots = graphs._captured[8].device[3 * 8 : 4 * 8].tolist()
    assert slots == [0, 1, 2, 3, 4, *[len(pool) - 1] * 3]
    kept = [place for place in range(len(pool)) if pool[place] != places[place]]
    assert set(kept) <= {0, 1, 2, 3, 4, len(pool) - 1}
    allowed = torch.zeros_like(before)
    for view in core.layout.views(allowed, 60):
        view[[NULL_PAGE, 7]] = 1.0
    changed = core.pool != before
    assert changed.any()
    assert not (changed & (allowed == 0)).any()


def test_the_null_page_is_there_from_the_start_and_nobodys():
    core = core_of(HYBRID, large_pages=30, device=GraphDevice(), knobs=Knobs(max_running=8, token_budget=64))
    held: set[int] = set()

    def look(chunks) -> None:
        for chunk in chunks:
            newest = (chunk.start + chunk.num_tokens - 1) // core.layout.page_tokens
            held.update(table[newest] for table in chunk.request.pages.tables)

    core.on_step = look
    run(core, *(Submit(f"r{i}", prompt(6 + 3 * i, i), greedy(9)) for i in range(6)))
    assert len(held) > 5
    assert NULL_PAGE not in held


class Asking(GraphDevice):
    """When a step's tokens are waited for, beside when steps are launched."""

    def __init__(self) -> None:
        super().__init__()
        self.runs_behind = True
        self.events: list[str] = []
        self.copies = 0

    def copy_to_host(self, tensor):
        host, _ = super().copy_to_host(tensor)
        self.copies += 1
        name = f"read {self.copies}"
        return host, lambda: self.events.append(name)


def test_the_next_step_is_launched_before_the_last_ones_tokens_are_read():
    device = Asking()
    core = core_of(PLAIN, device=device)
    assert core.overlap
    launch, count = core.runner.launch, [0]

    def launching(chunks):
        count[0] += 1
        device.events.append(f"launch {count[0]}")
        return launch(chunks)

    core.runner.launch = launching
    run(core, Submit("a", prompt(5), greedy(8)), Submit("b", prompt(7), greedy(8, frequency_penalty=0.5)))
    last = count[0]
    assert last >= 8
    for step in range(1, last):
        assert device.events.index(f"launch {step + 1}") < device.events.index(f"read {step}")
