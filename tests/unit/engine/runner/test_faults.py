"""Steps that fail for want of memory, and devices that are lost."""

from __future__ import annotations

import pytest
import torch

from engine.errors import DeviceLost
from engine.messages import FinishReason, Knobs, SamplingParams, Submit
from engine.runner.faults import MemoryCaution, is_out_of_memory, lost_device
from tests.fakes.engine_models import GraphDevice, HashModel, core_of
from tests.fakes.engine_runs import PLAIN, greedy, prompt, run, tokens


class Tight(HashModel):
    """A device with memory for so many tokens in a step."""

    most_tokens = 10_000
    broken = 0  # steps that fail half way, after all was written

    def forward(self, batch):
        logits = super().forward(batch)
        if batch.num_tokens > self.most_tokens:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        if self.broken:
            self.broken -= 1
            raise RuntimeError("CUDA error: out of memory")
        return logits


def tight_core(most_tokens: int, **more):
    model = Tight(PLAIN)
    model.most_tokens = most_tokens
    knobs = Knobs(max_running=8, token_budget=64, prefill_chunk=32)
    return core_of(PLAIN, large_pages=400, model=model, knobs=knobs, **more)


@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlap"])
@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "graphs"])
def test_a_step_with_too_many_prompt_tokens_runs_again_with_fewer_and_ends_nobody(overlap, graphs):
    submits = [
        Submit(
            f"r{i}",
            prompt(30 + i, i),
            SamplingParams(max_tokens=9, seed=i, presence_penalty=0.5) if i % 2 else greedy(9),
        )
        for i in range(6)
    ]
    alone = {s.request_id: tokens(run(core_of(PLAIN), s)[s.request_id]) for s in submits}
    device = GraphDevice() if graphs else None
    core = tight_core(20, overlap=overlap, device=device)
    seen = run(core, *submits)
    assert {name: tokens(deltas) for name, deltas in seen.items()} == alone
    assert core.stats().shed_total == 0


@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlap"])
def test_a_decode_that_breaks_off_half_way_runs_again_to_the_same_tokens(overlap):
    submits = [
        Submit(f"r{i}", prompt(9, i), SamplingParams(max_tokens=30, seed=i, frequency_penalty=0.8)) for i in range(4)
    ]
    alone = {s.request_id: tokens(run(core_of(PLAIN), s)[s.request_id]) for s in submits}
    core = tight_core(10_000, overlap=overlap, device=GraphDevice())
    for submit in submits:
        core.add(submit)
    produced: dict[str, list[int]] = {s.request_id: [] for s in submits}
    errors = []
    for step in range(400):
        if not core.has_work():
            break
        if step == 12:
            core.runner.model.broken = 1
        for delta in core.step().deltas:
            produced[delta.request_id] += delta.token_ids
            if delta.error is not None:
                errors.append((delta.request_id, delta.error.code))
        core.scheduler.check_integrity()
    assert not errors
    assert produced == alone
    assert core.stats().shed_total == 0


def test_a_prompt_that_fits_in_no_size_lets_streams_go_on_and_ends_alone():
    core = tight_core(10_000)
    core.add(Submit("stream", prompt(5), greedy(40)))
    core.step()
    core.runner.model.most_tokens = 3  # less than a page beside a decode
    core.add(Submit("large", prompt(100, 2), greedy(5)))
    ends = {}
    while core.has_work():
        for delta in core.step().deltas:
            if delta.finish is not None:
                ends[delta.request_id] = (delta.finish, delta.error.code if delta.error else None)
        core.scheduler.check_integrity()
    assert ends == {
        "large": (FinishReason.ERROR, "device_memory_full"),
        "stream": (FinishReason.LENGTH, None),
    }
    assert core.kv.num_active == 0


class NoRoomToCapture(GraphDevice):
    """A device without the memory that recording more than one row takes."""

    refused = 0

    def capture_graph(self, run, memory):
        captured = super().capture_graph(run, memory)
        if captured[1].shape[0] > 1:
            self.refused += 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return captured


def test_sizes_that_cannot_be_captured_run_eagerly_and_are_not_tried_again():
    submits = [Submit(f"r{i}", prompt(9, i), greedy(12 + i)) for i in range(4)]
    alone = {s.request_id: tokens(run(core_of(PLAIN), s)[s.request_id]) for s in submits}
    device = NoRoomToCapture()
    core = core_of(PLAIN, device=device, knobs=Knobs(max_running=4, token_budget=64, prefill_chunk=32))
    while core.prepare():
        pass
    seen = run(core, *submits)
    assert {name: tokens(deltas) for name, deltas in seen.items()} == alone
    assert core.stats().shed_total == 0
    assert device.refused == 8, "decodes of two and of four rows, and six small steps, once each"
    assert device.replays > 0, "one row is replayed"


def test_caution_after_a_shortage_is_given_up_step_by_step():
    caution = MemoryCaution()
    core = core_of(PLAIN)
    core.add(Submit("a", prompt(16), greedy(2)))
    chunks = core.scheduler.schedule()
    caution.short(chunks, 4)
    assert caution.chunk_tokens == 8
    for _ in range(63):
        caution.went_well(32)
    assert caution.chunk_tokens == 8
    caution.went_well(32)
    assert caution.chunk_tokens == 16
    for _ in range(64):
        caution.went_well(32)
    assert caution.chunk_tokens is None


LOST = (
    "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be asynchronously reported",
    "CUDA error: unspecified launch failure",
    "CUDA error: uncorrectable ECC error encountered",
    "HIP error: the operation cannot be performed in the present state",
)


@pytest.mark.parametrize("text", LOST)
@pytest.mark.parametrize("where", ["launch", "read"])
def test_a_lost_device_ends_the_worker_at_once_with_what_happened(text, where):
    class Failing(HashModel):
        def forward(self, batch):
            if where == "launch":
                raise RuntimeError(text)
            return super().forward(batch)

    core = core_of(PLAIN, model=Failing(PLAIN), overlap=True)
    core.add(Submit("a", prompt(5), greedy(5)))
    if where == "read":

        def fail():
            raise RuntimeError(text)

        core.device.copy_to_host = lambda tensor: (tensor, fail)
    if where == "read":
        core.step()
    with pytest.raises(DeviceLost) as caught:
        core.step()
    assert text.partition("\n")[0] in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("error", "memory", "lost"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), True, False),
        (RuntimeError("CUDA error: out of memory"), True, False),
        (RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"), True, False),
        (MemoryError(), True, False),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True, False),
        (RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"), False, True),
        (torch.AcceleratorError("CUDA error: device-side assert triggered", 710), False, True),
        (RuntimeError("The size of tensor a (3) must match the size of tensor b (4)"), False, False),
        (ValueError("CUDA error"), False, False),
    ],
)
def test_errors_are_told_apart(error, memory, lost):
    assert is_out_of_memory(error) is memory
    assert (lost_device(error, "cuda:0") is not None) is lost
