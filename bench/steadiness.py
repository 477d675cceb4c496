"""What streams that run notice of others: the longest gap while a long prompt enters, and memory taken in between."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import msgspec
import torch

from engine.core import EngineCore
from engine.devices import Device
from engine.messages import SamplingParams, Submit

SETTLING_STEPS = 20
ENDLESS = 1 << 20  # tokens; the streams are aborted


@dataclass(frozen=True, slots=True)
class Gap:
    """Times between two tokens of a stream, in milliseconds, and what the prompt that entered waited."""

    usual_ms: float  # median without the prompt
    longest_ms: float  # while it entered
    first_token_ms: float  # of the prompt
    steps: int  # it took


class Streams:
    """So many greedy streams that run until they are stopped. Owner: the caller."""

    def __init__(self, core: EngineCore, prompts: list[list[int]]) -> None:
        self._core = core
        self._names = [f"stream{i}" for i in range(len(prompts))]
        for name, prompt in zip(self._names, prompts, strict=True):
            core.add(Submit(name, prompt, SamplingParams(max_tokens=ENDLESS, temperature=0.0, ignore_eos=True)))
        waiting = set(self._names)
        while waiting:
            waiting -= self.step()
        for _ in range(SETTLING_STEPS):
            self.step()

    def step(self) -> set[str]:
        """One step; whose tokens came with it."""
        return {delta.request_id for delta in self._core.step().deltas if delta.token_ids}

    def stop(self) -> None:
        for name in self._names:
            self._core.abort(name)
        while self._core.has_work():
            self._core.step()


def longest_gap(core: EngineCore, prompts: list[list[int]], entering: list[int], max_step_ms: float) -> Gap:
    """Let a prompt enter while streams run, with steps kept within max_step_ms (0: as long as they come)."""
    before = core.scheduler.knobs
    core.set_knobs(msgspec.structs.replace(before, max_step_ms=max_step_ms))
    streams = Streams(core, prompts)
    usual, _ = _times(streams, 50)
    began = time.perf_counter()
    core.add(Submit("entering", entering, SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)))
    gaps, ended = _times(streams, 5, until="entering")
    streams.stop()
    core.set_knobs(before)
    return Gap(
        round(statistics.median(usual) * 1e3, 2),
        round(max(gaps) * 1e3, 2),
        round((ended - began) * 1e3, 1),
        len(gaps) - 4,  # the last of them is the first of the five
    )


def _times(streams: Streams, steps: int, until: str = "") -> tuple[list[float], float]:
    """Times between the first stream's tokens, for so many steps after `until` had its token; and when that was."""
    gaps: list[float] = []
    last = time.perf_counter()
    ended = 0.0 if until else last
    while steps > 0:
        came = streams.step()
        now = time.perf_counter()
        if until in came:
            ended = now
        if "stream0" in came:
            gaps.append(now - last)
            last = now
            steps -= ended > 0.0
    return gaps, ended


def steady_allocations(
    core: EngineCore, device: Device, prompts: list[list[int]], steps: int = 50
) -> dict[str, int] | None:
    """What the device's allocator was asked in so many decode steps; None where it does not count.

    segments: pieces of memory taken from the device; tensors: those made within such pieces
    """
    if device.torch_device.type != "cuda":
        return None
    streams = Streams(core, prompts)
    device.synchronize()
    before = torch.cuda.memory_stats(device.torch_device)
    for _ in range(steps):
        streams.step()
    device.synchronize()
    after = torch.cuda.memory_stats(device.torch_device)
    streams.stop()
    keys = {
        "segments": "segment.all.allocated",
        "tensors": "allocation.all.allocated",
        "retries": "num_alloc_retries",
        "reserved_bytes": "reserved_bytes.all.current",
        "held_bytes": "allocated_bytes.all.current",
    }
    return {name: int(after[key] - before[key]) for name, key in keys.items()}
