"""Small steps of several queries, replayed: the tokens of eager steps, whatever is left over in a graph."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch

from engine.messages import Knobs, SamplingParams, Submit
from engine.runner.graphs import DecodeGraphs
from engine.runner.inputs import StepArrays
from engine.runner.step_graphs import MEMORY_LEFT, MOST_LOGITS, SIZES, StepGraphs, StepSize, size_for
from tests.fakes.engine_models import GraphDevice, HashModel, core_of
from tests.fakes.engine_runs import HYBRID, PLAIN, greedy, prompt, run, tokens

KNOBS = Knobs(max_running=9, token_budget=40, prefill_chunk=24)


def prepared(spec, device: GraphDevice, **more):
    core = core_of(spec, large_pages=400, device=device, **more)
    while core.prepare():
        pass
    return core


@pytest.mark.parametrize(
    ("tokens", "sequences", "logits", "size"),
    [
        (1, 1, 1, StepSize(2, 10)),
        (9, 1, 1, StepSize(2, 10)),
        (10, 1, 1, StepSize(2, 26)),
        (257, 1, 1, StepSize(2, 258)),
        (258, 1, 1, StepSize(2, 386)),
        (2049, 1, 1, StepSize(2, 2050)),
        (2050, 1, 1, None),
        (40, 2, 2, StepSize(16, 80)),
        (75, 15, 75, StepSize(16, 80)),
        (126, 63, 126, None),  # more logits than a graph has
        (64, 64, 64, None),
    ],
)
def test_a_step_takes_the_smallest_size_with_room_left(tokens, sequences, logits, size):
    found = size_for(tokens, sequences, logits)
    assert found == size
    if found is not None:
        assert found.rows - tokens >= found.sequences - sequences >= 1


@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlap"])
@pytest.mark.parametrize("spec", [PLAIN, HYBRID], ids=["plain", "hybrid"])
def test_prompts_beside_decodes_give_the_tokens_of_eager_steps(spec, overlap):
    submits = []
    for i in range(9):
        params = [greedy(9), SamplingParams(max_tokens=7, seed=i), greedy(6, frequency_penalty=0.7, top_logprobs=2)]
        submits.append(Submit(f"r{i}", prompt(1 + 6 * i, i % 4), params[i % 3]))
    eager = run(core_of(spec, large_pages=400), *submits)
    device = GraphDevice()
    core = prepared(spec, device, knobs=KNOBS, overlap=overlap)
    before = device.captures
    decodes = counted(core)
    replayed = run(core, *submits)
    assert {n: tokens(d) for n, d in replayed.items()} == {n: tokens(d) for n, d in eager.items()}
    assert device.captures == before
    assert device.replays > decodes[0] + 3, "prompts' steps are replayed too"


@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlap"])
def test_guesses_are_checked_in_replayed_steps(overlap):
    model = HashModel(PLAIN, habit=True)
    submits = [Submit(f"r{i}", prompt(5 + 6 * i, i), greedy(40)) for i in range(5)]
    submits[2] = Submit("r2", prompt(9, 2), SamplingParams(max_tokens=12, seed=3))
    plain = run(core_of(PLAIN, large_pages=400, model=model), *submits)
    device = GraphDevice()
    knobs = Knobs(max_running=6, token_budget=64, prefill_chunk=16, speculation_tokens=4)
    core = prepared(PLAIN, device, model=model, knobs=knobs, overlap=overlap)
    core.scheduler.speculation.heeds_cost = False
    decodes = counted(core)
    assert {n: tokens(d) for n, d in run(core, *submits).items()} == {n: tokens(d) for n, d in plain.items()}
    assert core.stats().draft_accepted_total > 0
    assert device.replays > decodes[0] + 5


def counted(core) -> list[int]:
    """How often decodes alone are replayed."""
    found = [0]
    replay = DecodeGraphs.replay

    def counting(self, *arguments):
        found[0] += 1
        return replay(self, *arguments)

    core.runner.graphs.replay = counting.__get__(core.runner.graphs)
    return found


def test_rows_left_over_are_of_sequences_on_the_null_page():
    core = prepared(PLAIN, GraphDevice(), knobs=KNOBS)
    graphs: StepGraphs = core.runner.step_graphs
    size = StepSize(16, 24)
    pool = core.runner._ensure_pool()
    arrays = StepArrays(
        token_ids=np.array([5, 6, 7, -1], np.int32),
        positions=np.array([0, 1, 2, 9], np.int32),
        slots=np.array([3, 4], np.int32),
        query_starts=np.array([0, 3, 4], np.int32),
        context_lens=np.array([3, 10], np.int32),
        logit_rows=np.array([2, 3], np.int32),
        tables=[np.ones((2, graphs._max_blocks), np.int32)],
        write_pages=[np.ones(4, np.int32)],
        write_offsets=np.array([0, 1, 2, 1], np.int32),
    )
    captured = graphs._captured[size]
    with torch.inference_mode():
        graphs.replay(size, arrays, pool)
    batch = captured.inputs
    assert batch.query_starts.diff().tolist() == [3, 1, *[1] * 13, 7]
    assert batch.context_lens.tolist() == [3, 10, *[1] * 13, 7]
    assert int(batch.query_starts[-1]) == size.rows
    assert batch.groups[0].write_pages.tolist() == [1] * 4 + [0] * 20
    assert batch.groups[0].block_tables[2:, :2].tolist() == [[0, 0]] * 14
    assert batch.logit_rows.tolist() == [2, 3, *[23] * 22]
    slots = captured.device[3 * 24 : 4 * 24].tolist()
    assert slots == [pool.shape[0] - 1] * 3 + [4] + [pool.shape[0] - 1] * 20, "one token is in the pool alone"


def test_sizes_fit_the_steps_that_can_be():
    core = prepared(PLAIN, GraphDevice(), knobs=KNOBS)
    graphs: StepGraphs = core.runner.step_graphs
    assert set(graphs._captured) == {
        size for size in SIZES if size.sequences <= 16 and size.rows - size.sequences <= 64
    }
    assert all(size.logits <= max(MOST_LOGITS, size.sequences) for size in SIZES)
    tight = prepared(PLAIN, GraphDevice(), knobs=KNOBS, max_context=20)
    assert all(size.rows <= 20 for size in tight.runner.step_graphs._captured)
    core.runner.forget_graphs()
    assert graphs.captured(3, 1, 1) is None
    assert core.prepare(), "they are captured again"


class BehindDevice(GraphDevice):
    """Works `takes_s` longer than launching a step takes, and has so much memory free."""

    def __init__(self, takes_s: float, free: int = 1 << 40) -> None:
        super().__init__()
        self._takes_s = takes_s
        self._free = free

    def synchronize(self) -> None:
        if self._takes_s:
            time.sleep(self._takes_s)

    def free_bytes(self) -> int:
        return self._free


@pytest.mark.parametrize(
    ("device", "largest"),
    [(BehindDevice(0.0), 386), (BehindDevice(0.2), 258), (BehindDevice(0.0, MEMORY_LEFT - 1), 258)],
    ids=["host bound", "device bound", "little memory"],
)
def test_many_rows_are_captured_where_that_gains_and_leaves_memory(device, largest):
    core = prepared(PLAIN, device, knobs=Knobs(max_running=1, token_budget=384, prefill_chunk=384), max_context=400)
    rows = [size.rows for size in core.runner.step_graphs._captured]
    assert max(rows) == largest, "those up to 256 rows are captured in any case"
    text = prompt(300, 3)
    eager = run(core_of(PLAIN, large_pages=400), Submit("r", text, greedy(3)))
    before = device.replays
    assert tokens(run(core, Submit("r", text, greedy(3)))["r"]) == tokens(eager["r"])
    assert device.replays - before == (3 if largest == 386 else 2), "the prompt's step is replayed if it was captured"


def test_steps_in_which_a_model_asks_the_device_are_not_captured():
    """As of experts that plain torch computes, a question of which ends a capture and the worker."""

    class Asking(HashModel):
        captured_rows = 100

        def forward(self, batch):
            assert not recording[0] or len(batch.token_ids) <= 100, "a question while a graph is captured"
            return super().forward(batch)

    class Recording(GraphDevice):
        def capture_graph(self, run, memory):
            recording[0] = True
            try:
                return super().capture_graph(run, memory)
            finally:
                recording[0] = False

    recording = [False]
    knobs = Knobs(max_running=1, token_budget=600, prefill_chunk=600)
    core = prepared(PLAIN, Recording(), model=Asking(PLAIN), knobs=knobs)
    assert max(size.rows for size in core.runner.step_graphs._captured) == 66
    text = prompt(300, 3)
    eager = run(core_of(PLAIN, large_pages=400), Submit("r", text, greedy(3)))
    assert tokens(run(core, Submit("r", text, greedy(3)))["r"]) == tokens(eager["r"])


def test_without_memory_for_a_graph_the_steps_run_eagerly():
    class Full(GraphDevice):
        def capture_graph(self, run, memory):
            raise torch.OutOfMemoryError("full")

    core = prepared(PLAIN, Full(), knobs=KNOBS)
    submits = [Submit(f"r{i}", prompt(4 + i, i), greedy(3)) for i in range(3)]
    eager = run(core_of(PLAIN, large_pages=400), *submits)
    assert {n: tokens(d) for n, d in run(core, *submits).items()} == {n: tokens(d) for n, d in eager.items()}
