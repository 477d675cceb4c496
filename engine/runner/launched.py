"""LaunchedStep: a step that is queued on the device, and the way to its tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.runner.sampler import Sampled
from engine.scheduler.chunk import ScheduledChunk
from engine.scheduler.request import Request


@dataclass(slots=True)
class LaunchedStep:
    """A step that is queued or done. wait() may be called once."""

    chunks: list[ScheduledChunk]
    needs_host: bool  # the next step needs this one's tokens on the host
    wait: Callable[[], dict[str, Sampled]]
    began: float = 0.0  # before it was launched, on time.perf_counter's clock


def by_id(samplers: Sequence[Request], results: Sequence[Sampled]) -> dict[str, Sampled]:
    return {request.id: result for request, result in zip(samplers, results, strict=True)}
