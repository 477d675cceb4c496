"""A worker whose device fails: it says so once and ends for the supervisor, with work or without."""

from __future__ import annotations

import threading

import pytest
import zmq

from engine.builder import BuiltEngine
from engine.messages import (
    StepReport,
    Submit,
    WorkerConfig,
    WorkerFailed,
    command_encoder,
    event_decoder,
)
from engine.worker import EXIT_FAILED, Worker
from tests.fakes.engine_models import CpuDevice, HashModel, core_of
from tests.fakes.engine_runs import PLAIN, greedy, prompt

LOST = "CUDA error: unspecified launch failure\nCompile with TORCH_USE_CUDA_DSA"


class LostInForward(HashModel):
    steps = 3

    def forward(self, batch):
        self.steps -= 1
        if self.steps < 0:
            raise RuntimeError(LOST)
        return super().forward(batch)


class LostWhileIdle(CpuDevice):
    def synchronize(self) -> None:
        raise RuntimeError(LOST)


@pytest.mark.parametrize("when", ["in a step", "idle"])
def test_worker_of_a_lost_device_says_so_and_exits_with_70(when, tmp_path, monkeypatch):
    device = LostWhileIdle() if when == "idle" else CpuDevice()
    core = core_of(PLAIN, model=LostInForward(PLAIN), device=device)
    monkeypatch.setattr(Worker, "_load", lambda self: BuiltEngine(core, device, {}))
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
    if when == "in a step":
        peer.send(command_encoder.encode(Submit("a", prompt(5), greedy(50))))
    events = []
    while not events or not isinstance(events[-1], WorkerFailed):
        events.append(event_decoder.decode(peer.recv()))
    thread.join(10)
    peer.close()
    assert statuses == [EXIT_FAILED]
    error = events[-1].error
    assert error.code == "device_lost"
    assert "unspecified launch failure" in error.message
    assert error.hint
    reports = [event for event in events if isinstance(event, StepReport)]
    assert len(reports) == (3 if when == "in a step" else 0)
