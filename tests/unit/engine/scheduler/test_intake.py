"""A request's numbers at the worker's border: one that cannot be is refused by name, and nobody else notices."""

from __future__ import annotations

import math
import threading

import msgspec
import pytest
import zmq

from engine.builder import BuiltEngine
from engine.messages import (
    Embed,
    ErrorInfo,
    FinishReason,
    Grammar,
    GrammarKind,
    SamplingParams,
    StepReport,
    Stop,
    Submit,
    WorkerConfig,
    command_encoder,
    event_decoder,
)
from engine.worker import Worker
from tests.fakes.engine_models import CpuDevice, core_of
from tests.fakes.engine_runs import PLAIN, greedy, prompt, run, tokens

NAN, INF = math.nan, math.inf
VOCAB = PLAIN.vocab_size
WRONG = [
    ("logit_bias", {"logit_bias": {VOCAB: 1.0}}),
    ("logit_bias", {"logit_bias": {-1: 1.0}}),
    *[("logit_bias", {"logit_bias": {3: bias}}) for bias in (NAN, INF, -INF, 1e39)],
    ("stop_token_ids", {"stop_token_ids": (-1,), "min_tokens": 2}),
    ("top_logprobs", {"top_logprobs": -1}),
    ("max_tokens", {"max_tokens": 0}),
    ("min_tokens", {"min_tokens": -1}),
    ("top_k", {"top_k": -1}),
    *[("temperature", {"temperature": number}) for number in (NAN, INF, -0.5)],
    *[("top_p", {"top_p": number}) for number in (NAN, 0.0, 1.5)],
    *[("min_p", {"min_p": number}) for number in (NAN, -0.1, 1.5)],
    *[("repetition_penalty", {"repetition_penalty": number}) for number in (NAN, INF, 0.0, -1.0, 1e-320)],
    *[(name, {name: number}) for name in ("presence_penalty", "frequency_penalty") for number in (NAN, INF, -INF)],
]
KEPT = {
    "temperature": 2.0, "top_k": 10**12, "top_p": 1e-30, "min_p": 1.0, "repetition_penalty": 10.0,
    "presence_penalty": -2.0, "frequency_penalty": 2.0, "top_logprobs": 10**12, "logit_bias": {VOCAB - 1: -100.0},
    "seed": -(2**63), "min_tokens": 2, "stop_token_ids": (VOCAB + 5, 2**62),
}  # fmt: skip


def refused(core, submit: Submit) -> str:
    """Why the core refuses it, beside a request that must not notice."""
    alone = tokens(run(core, Submit("before", prompt(9), greedy(5)))["before"])
    seen = run(core, submit, Submit("beside", prompt(9), greedy(5)))
    assert tokens(seen["beside"]) == alone
    (delta,) = seen[submit.request_id]
    assert delta.finish is FinishReason.ERROR
    assert delta.error.code == "invalid_parameter"
    return delta.error.message


def test_each_number_that_cannot_be_is_refused_by_name_and_no_step_fails():
    core = core_of(PLAIN)
    for at, (name, fields) in enumerate(WRONG):
        sampling = SamplingParams(**{"max_tokens": 5, **fields})
        assert name in refused(core, Submit(f"wrong{at}", prompt(5), sampling)), fields
    for weight in (NAN, INF, 0.0, -1.0):
        assert "weight" in refused(core, Submit(f"weight{weight}", prompt(5), greedy(2), weight=weight))
    for deadline_s in (NAN, INF):
        assert "deadline_s" in refused(core, Submit(f"late{deadline_s}", prompt(5), greedy(2), deadline_s=deadline_s))
    assert core.kv.num_active == 0


def test_a_grammar_is_not_compiled_for_numbers_that_cannot_be():
    """Without a compiler the gate refuses too, for another reason."""
    sampling = greedy(5, grammar=Grammar(GrammarKind.REGEX, "a"), top_logprobs=-1)
    assert "top_logprobs" in refused(core_of(PLAIN), Submit("a", prompt(5), sampling))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_widest_numbers_that_can_be_are_drawn_by(temperature):
    """Stop tokens without a logit among them: a tokenizer may know more tokens than the model."""
    sampling = SamplingParams(max_tokens=6, **{**KEPT, "temperature": temperature})
    seen = run(core_of(PLAIN), Submit("a", prompt(5), sampling))["a"]
    assert seen[-1].finish is FinishReason.LENGTH
    assert len(tokens(seen)) == 6


def served(tmp_path, monkeypatch, commands: list[bytes]) -> list[StepReport]:
    """What a worker of a small model reports before it stops."""
    core = core_of(PLAIN)
    monkeypatch.setattr(Worker, "_load", lambda self: BuiltEngine(core, CpuDevice(), {}))
    monkeypatch.setattr("engine.worker.signal.signal", lambda number, handler: None)
    endpoint = f"ipc://{tmp_path}/w.sock"
    peer = zmq.Context.instance().socket(zmq.DEALER)
    peer.setsockopt(zmq.LINGER, 0)
    peer.setsockopt(zmq.RCVTIMEO, 10_000)
    peer.bind(endpoint)
    worker = Worker(WorkerConfig("w", "tiny", "", endpoint, heartbeat_s=0.05))
    statuses: list[int] = []
    thread = threading.Thread(target=lambda: statuses.append(worker.run()))
    thread.start()
    for command in commands:
        peer.send(command)
    reports: list[StepReport] = []
    ended = 0
    while ended < len(commands):
        event = event_decoder.decode(peer.recv())
        if isinstance(event, StepReport):
            reports.append(event)
            ended += sum(delta.finish is not None for delta in event.deltas)
    peer.send(command_encoder.encode(Stop()))
    thread.join(10)
    peer.close()
    assert statuses == [0], "the worker lives until it is told to stop"
    return reports


def test_a_worker_refuses_commands_it_cannot_read_and_serves_the_rest(tmp_path, monkeypatch):
    """Its decoder has bounds too: a request outside them ends alone."""
    unreadable = [
        Submit("bad1", prompt(5), SamplingParams(max_tokens=3, temperature=-1.0)),
        Submit("bad2", prompt(5), SamplingParams(max_tokens=3, top_k="many")),
        Embed("bad3", prompt(5), weight=NAN),
    ]
    good = Submit("good", prompt(5), greedy(4))
    commands = [command_encoder.encode(command) for command in (good, *unreadable)]
    unknown = msgspec.msgpack.decode(commands[0])
    unknown["request_id"], unknown["sampling"]["top_z"] = "bad4", 1
    reports = served(tmp_path, monkeypatch, [*commands, msgspec.msgpack.encode(unknown)])
    deltas = [delta for report in reports for delta in report.deltas]
    assert len([token for delta in deltas if delta.request_id == "good" for token in delta.token_ids]) == 4
    errors: dict[str, ErrorInfo] = {delta.request_id: delta.error for delta in deltas if delta.error is not None}
    named = {"bad1": "sampling.temperature", "bad2": "sampling.top_k", "bad3": "weight", "bad4": "top_z"}
    assert sorted(errors) == sorted(named)
    for request_id, name in named.items():
        assert errors[request_id].code == "invalid_parameter"
        assert name in errors[request_id].message
