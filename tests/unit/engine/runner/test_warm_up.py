"""Steps that warm a device up: they are steps a model takes, and leave nothing behind but on the null page."""

from __future__ import annotations

from pathlib import Path

import torch

from engine.builder import build_engine
from engine.core import EngineCore
from engine.messages import WorkerConfig
from engine.runner.draw import draw_once
from engine.runner.warm_up import STEPS, WarmUp
from tests.fakes.engine_models import GraphDevice, core_of
from tests.fakes.engine_runs import PLAIN
from tests.fakes.family_models import saved_model


def test_every_step_runs_once_and_writes_to_the_null_page_alone(tmp_path: Path) -> None:
    saved_model("gemma2", tmp_path)
    config = WorkerConfig("w", "tiny", str(tmp_path), "", dtype="float32", kv_tokens=512, max_context_tokens=1024)
    core = build_engine(config, lambda stage, done, total: None).core
    assert isinstance(core, EngineCore)
    runner = core.runner
    seen: list[torch.Tensor] = []

    def forward(batch):
        logits = runner.model.forward(batch)
        assert batch.num_tokens == sum(queries[len(seen)])
        assert torch.isfinite(logits).all()
        seen.append(logits)
        return logits

    queries = [step for step in STEPS if max(step) <= runner.tables.max_blocks * core.layout.page_tokens]
    assert (768,) not in queries, "the model is made for 256 tokens"
    before = [view.clone() for view in runner._kv_views]
    warm_up = WarmUp(forward, runner.layout, runner._kv_views, runner.device, 256)
    turns = 0
    with torch.inference_mode():
        while warm_up.next():
            turns += 1
    assert turns == len(seen) == len(queries)
    assert [logits.shape[0] for logits in seen] == [len(step) for step in queries]
    for view, old, group in zip(runner._kv_views, before, runner.layout.layer_groups, strict=True):
        null = runner.layout.groups[group].ratio  # small pages in the first large one
        assert torch.equal(view[null:], old[null:])
        assert not torch.equal(view[:null], old[:null])


def test_want_of_memory_ends_a_step_and_not_the_worker() -> None:
    core = core_of(PLAIN)
    tried: list[int] = []

    def forward(batch):
        tried.append(batch.num_tokens)
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    runner = core.runner
    warm_up = WarmUp(forward, runner.layout, runner._kv_views, runner.device, 4096)
    while warm_up.next():
        pass
    assert tried == [sum(queries) for queries in STEPS]


def test_a_draw_comes_last_and_leaves_no_count() -> None:
    core = core_of(PLAIN, device=GraphDevice(), max_context=128)
    runner, drawn = core.runner, []
    draw_tokens = runner._draw_tokens

    def watched(logits, picked, counts, asked):
        told = draw_tokens(logits, picked, counts, asked)
        drawn.append((picked.tolist(), counts.shape, told.shape))
        return told

    warm_up = WarmUp(
        runner.model.forward, runner.layout, runner._kv_views, runner.device, 128,
        lambda: draw_once(runner._counts, watched, runner.device),
    )  # fmt: skip
    with torch.inference_mode():
        assert warm_up.next()
        assert not drawn
        assert warm_up.next()
        assert not warm_up.next()
    assert [len(one) for one in drawn] == [3]
    (token,), counts, told = drawn[0]
    assert 0 <= token < 97
    assert counts == (0, 97)
    assert told == (1, 1)
    while core.prepare():
        pass
    assert not runner._warm_up.next(), "the runner's own has run"
