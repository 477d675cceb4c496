"""A crowd of requests with everything that sampling knows, aborted in the middle: what each wrote and was told."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field

from engine.core import EngineCore
from engine.devices import Device
from engine.messages import FinishReason, Grammar, GrammarKind, Knobs, SamplingParams, Submit, TokenLogprob
from tests.fakes.engine_models import attention, core_of, spec_of
from tests.fakes.schemas import SCHEMAS
from tests.fakes.tiny_text import NoiseModel, tiny_compiler, tiny_text

TEXT = tiny_text()
VOCAB = 5003  # more than a block of the kernel that draws, and no multiple of anything
SPEC = spec_of(attention(), vocab=VOCAB, context=2048)
TOKENS = 40
ABORTED = {"gone": 9, "gone json": 14}  # after so many steps
JSON = {
    "json": {"temperature": 0.0, "top_logprobs": 3},
    "drawn json": {"temperature": 0.9, "top_p": 0.9, "seed": 5},
    "repeated json": {"temperature": 0.0, "repetition_penalty": 1.2, "top_logprobs": 0},
    "gone json": {"temperature": 0.0},
}
FREE = {
    "greedy": {"temperature": 0.0},
    "told": {"temperature": 0.0, "top_logprobs": 0},
    "told much": {"temperature": 0.0, "top_logprobs": 20},
    "drawn": {"seed": 1},
    "of few": {"seed": 2, "top_p": 0.7, "top_logprobs": 5},
    "of fewer": {"seed": 3, "top_k": 5, "min_p": 0.05, "temperature": 1.3},
    "not again": {"seed": 4, "repetition_penalty": 1.3, "frequency_penalty": 0.5, "top_logprobs": 4},
    "not so": {"temperature": 0.0, "logit_bias": {3: 8.0, 70: -100.0}, "presence_penalty": 2.0},
    "not yet": {"temperature": 0.0, "min_tokens": 30, "stop_token_ids": tuple(range(0, VOCAB, 3)), "top_logprobs": 1},
    "gone": {"seed": 6, "frequency_penalty": 1.0},
}


@dataclass(slots=True)
class Written:
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish: FinishReason | None = None


def core_for_crowd(device: Device, *, overlap: bool, graphs: bool, max_running: int = 16) -> EngineCore:
    model = NoiseModel(TEXT, VOCAB, device=str(device.torch_device))
    knobs = Knobs(max_running=max_running, token_budget=48, prefill_chunk=16)
    core = core_of(
        SPEC, large_pages=900, model=model, device=device, overlap=overlap, knobs=knobs,
        grammars=tiny_compiler(TEXT, VOCAB),
    )  # fmt: skip
    if not graphs:
        core.runner.graphs = core.runner.step_graphs = None
    while graphs and core.prepare():
        pass
    return core


def crowd() -> list[Submit]:
    grammar = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMAS[0]))
    stops = TEXT.stop_token_ids
    constrained = [
        SamplingParams(max_tokens=200, stop_token_ids=stops, grammar=grammar, **params)  # type: ignore[arg-type]
        for params in JSON.values()
    ]
    free = [SamplingParams(max_tokens=TOKENS, **params) for params in FREE.values()]  # type: ignore[arg-type]
    names = [*JSON, *FREE]
    return [
        Submit(name, [33 + (i * 7 + n) % 90 for n in range(1 + 3 * i)], sampling)
        for i, (name, sampling) in enumerate(zip(names, [*constrained, *free], strict=True))
    ]


def written(core: EngineCore) -> dict[str, Written]:
    """All of the crowd, with ABORTED ended in the middle."""
    out = {submit.request_id: Written() for submit in crowd()}
    for submit in crowd():
        core.add(submit)
    while core.is_compiling and not core.gate.is_ready:
        time.sleep(0.001)
    steps, ends_mono = 0, time.monotonic() + 60
    while core.has_work() or core.is_compiling:
        assert time.monotonic() < ends_mono
        if not core.has_work():
            continue
        steps += 1
        for name in (name for name, at in ABORTED.items() if at == steps):
            core.abort(name)
        for delta in core.step().deltas:
            assert delta.error is None, delta.error
            one = out[delta.request_id]
            assert one.finish is None, "nothing comes after the end"
            one.tokens += delta.token_ids
            one.logprobs += delta.logprobs or []
            one.finish = delta.finish
        core.scheduler.check_integrity()
    assert core.kv.num_active == 0
    return out
