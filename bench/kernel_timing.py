"""Time kernels on a device as a step runs them: replayed, and with weights that are not in the cache any more."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

CACHE_BYTES = 200 << 20  # more than a GPU caches: weights of so many bytes are gone when their turn comes again


def microseconds(runs: Sequence[Callable[[], object]], repeats: int = 5) -> float:
    """Time of one call, the calls being made one after the other: replayed on a GPU, the best of some turns."""
    if not torch.cuda.is_available():
        begun = time.perf_counter()
        for run in runs:
            run()
        return (time.perf_counter() - begun) / len(runs) * 1e6
    calls = list(runs) * max(1, 16 // len(runs))
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(side):
        for run in runs:
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for run in calls:
            run()
    best = float("inf")
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        best = min(best, start.elapsed_time(end) * 1e3 / len(calls))
    del graph
    return best


def copies_for(num_bytes: int) -> int:
    """How many of a weight are needed so that none is cached when it is read."""
    return 1 if not torch.cuda.is_available() else max(1, min(64, -(-CACHE_BYTES // num_bytes)))


def relative_error(got: torch.Tensor, truth: torch.Tensor) -> float:
    """Of the norms. Shapes: alike; truth in float64"""
    return float((got.double() - truth).norm() / truth.norm())
