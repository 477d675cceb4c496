"""What really fails on an accelerator: memory that is short ends nobody, and a lost device ends the worker."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from engine.builder import build_engine
from engine.core import EngineCore
from engine.messages import Knobs, SamplingParams, Submit, WorkerConfig
from engine.worker import EXIT_FAILED
from tests.fakes.family_models import behind_best, saved_case, saved_model

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
]
GREEDY = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True)
LONG = [5 + i % 90 for i in range(3000)]
NEAR = 2e-2  # of the logits' spread: so far a token may be from the best one


@pytest.fixture
def full_device() -> Iterator[None]:
    """From its first use on, nothing can be taken from the device beyond what the process has."""
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)


def fill() -> None:
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (24 << 20)) / total)


def test_a_prompt_that_needs_more_memory_than_is_free_takes_smaller_steps_and_ends_nobody(
    full_device: None, tmp_path: Path
) -> None:
    wide = {"hidden_size": 192, "intermediate_size": 8192, "max_position_embeddings": 4096}
    model = saved_case("Llama", wide, tmp_path)
    knobs = Knobs(max_running=8, token_budget=4096, prefill_chunk=4096, prefix_cache=False)
    config = WorkerConfig(
        "w", "wide", str(tmp_path), "", device="cuda:0", dtype="float32", kv_tokens=8192, max_context_tokens=4096,
        knobs=knobs,
    )  # fmt: skip
    core = build_engine(config, lambda stage, done, total: None).core
    assert isinstance(core, EngineCore)
    streams = [Submit(f"r{i}", [7 + i] * 9, GREEDY) for i in range(4)]
    long = Submit("long", LONG, GREEDY)
    truth = written(core, [*streams, long])
    assert core.stats().shed_total == 0
    fill()
    tried = []
    core.on_step = lambda chunks: tried.append(sum(chunk.num_tokens for chunk in chunks))
    found = written(core, [*streams, long])
    caution = core._launcher.caution.chunk_tokens
    assert caution is not None, "memory was not short: the test tests nothing"
    assert caution < 3000
    assert {name: len(tokens) for name, tokens in found.items()} == {
        name: len(tokens) for name, tokens in truth.items()
    }
    # Slices of another size round otherwise, and one token that does is followed by others: each is to be the best
    # there, or nearly.
    for submit in (*streams, long):
        assert behind_best(model, submit.prompt_token_ids, found[submit.request_id]).max() < NEAR, submit.request_id


def written(core: EngineCore, submits: list[Submit]) -> dict[str, list[int]]:
    tokens: dict[str, list[int]] = {submit.request_id: [] for submit in submits}
    for submit in submits:
        core.add(submit)
    while core.has_work():
        for delta in core.step().deltas:
            assert delta.error is None, delta.error
            tokens[delta.request_id] += delta.token_ids
    return tokens


LOSING = """
import json, sys, threading
import torch, zmq
from engine.builder import build_engine
from engine.messages import *
from engine.worker import Worker

folder, endpoint = sys.argv[1:]
config = WorkerConfig("w", "tiny", folder, endpoint, device="cuda:0", kv_tokens=1024, max_context_tokens=256,
                      heartbeat_s=0.05, knobs=Knobs(max_running=4, token_budget=64, prefill_chunk=32))
built = build_engine(config, lambda *_: None)
forward, steps = built.core.runner.model.forward, []
def failing(batch):
    steps.append(batch)
    if len(steps) == 3:  # of prompts; decodes are replayed
        torch._assert_async(torch.zeros((), dtype=torch.bool, device="cuda"))
    return forward(batch)
object.__setattr__(built.core.runner, "model", type("Failing", (), {"forward": staticmethod(failing)})())
Worker._load = lambda self: built
import engine.worker
engine.worker.signal.signal = lambda number, handler: None
peer = zmq.Context.instance().socket(zmq.DEALER)
peer.setsockopt(zmq.LINGER, 0)
peer.setsockopt(zmq.RCVTIMEO, 60_000)
peer.bind(endpoint)
statuses = []
thread = threading.Thread(target=lambda: statuses.append(Worker(config).run()))
thread.start()
for i in range(4):
    prompt = [3 + i] * 30
    peer.send(command_encoder.encode(Submit(f"r{i}", prompt, SamplingParams(max_tokens=200, ignore_eos=True))))
while True:
    event = event_decoder.decode(peer.recv())
    if isinstance(event, WorkerFailed):
        break
thread.join(30)
print(json.dumps({"status": statuses, "code": event.error.code, "message": event.error.message}))
sys.stdout.flush()
import os
os._exit(0)  # nothing of a lost device can be given back
"""


def test_a_worker_whose_device_fails_for_good_says_so_and_exits_for_its_supervisor(tmp_path: Path) -> None:
    saved_model("llama", tmp_path / "model")
    done = subprocess.run(
        [sys.executable, "-c", LOSING, str(tmp_path / "model"), f"ipc://{tmp_path}/w.sock"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.stdout.strip(), done.stderr[-2000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert found["status"] == [EXIT_FAILED]
    assert found["code"] == "device_lost"
    assert "cuda:0" in found["message"]
