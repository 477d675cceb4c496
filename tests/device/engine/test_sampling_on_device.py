"""On an accelerator: what is drawn and told is the same in every way of stepping, without memory or the host's help."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from engine.core import EngineCore
from engine.devices import Device, open_device
from engine.devices.cpu import CpuDevice
from engine.messages import FinishReason, SamplingParams, Submit
from tests.fakes.sampled_crowd import ABORTED, FREE, JSON, Written, core_for_crowd, written

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
]
ENDLESS = 1500  # tokens, less than a context


@pytest.fixture(scope="module")
def device() -> Device:
    return open_device("cuda:0")


def same(found: dict[str, Written], truth: dict[str, Written]) -> None:
    for name, one in truth.items():
        count = min(len(found[name].tokens), len(one.tokens)) if name in ABORTED else None
        assert found[name].tokens[:count] == one.tokens[:count], name
        if count is None:
            assert found[name].finish is one.finish
            assert found[name].logprobs == one.logprobs, "bit by bit"


def test_overlap_replay_and_smaller_batches_change_no_token_and_no_log_probability(device: Device) -> None:
    plain = written(core_for_crowd(device, overlap=False, graphs=False))
    assert all(plain[name].finish is FinishReason.ABORT for name in ABORTED)
    for overlap, graphs, max_running in ((True, False, 16), (False, True, 16), (True, True, 16), (True, True, 3)):
        same(written(core_for_crowd(device, overlap=overlap, graphs=graphs, max_running=max_running)), plain)
    host = written(core_for_crowd(CpuDevice(), overlap=False, graphs=False))
    compared = [name for name in (*JSON, *FREE) if name not in ABORTED]
    equal = [a == b for name in compared for a, b in zip(plain[name].tokens, host[name].tokens, strict=False)]
    assert sum(equal) >= 0.9 * len(equal), "the model's sines differ in the last bit"
    for name in compared:
        if plain[name].tokens == host[name].tokens:
            for ours, theirs in zip(plain[name].logprobs, host[name].logprobs, strict=True):
                assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-4)
                assert [number for _, number in ours.top] == pytest.approx([n for _, n in theirs.top], abs=1e-4)


def test_a_launch_waits_for_nothing(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    core = core_for_crowd(device, overlap=True, graphs=True)
    launch, launched = core.runner.launch, []

    def watched(chunks: list[object]) -> object:
        torch.cuda.set_sync_debug_mode("error")
        try:
            launched.append(len(chunks))
            return launch(chunks)  # type: ignore[arg-type]
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(core.runner, "launch", watched)
    found = written(core)
    assert all(one.finish is not None for one in found.values())
    assert len(launched) > 20


def stream(core: EngineCore) -> Callable[[], None]:
    """Start streams of every kind that has no grammar; a step of them all."""
    for i, (name, params) in enumerate(FREE.items()):
        if "stop_token_ids" not in params:
            sampling = SamplingParams(max_tokens=ENDLESS, ignore_eos=True, **params)  # type: ignore[arg-type]
            core.add(Submit(name, [40 + i] * (3 + i), sampling))

    def step() -> None:
        assert not [delta for delta in core.step().deltas if delta.finish is not None]

    return step


def test_steps_that_draw_take_no_device_memory(device: Device) -> None:
    step = stream(core_for_crowd(device, overlap=True, graphs=True))
    for _ in range(30):
        step()
    device.synchronize()
    before = torch.cuda.memory_stats()
    for _ in range(60):
        step()
    device.synchronize()
    after = torch.cuda.memory_stats()
    for key in ("segment.all.allocated", "reserved_bytes.all.current", "num_alloc_retries"):
        assert after[key] == before[key], key
    assert abs(after["allocated_bytes.all.current"] - before["allocated_bytes.all.current"]) < 1 << 20
