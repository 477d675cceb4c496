"""How fast a host reads its memory: the ceiling of a decode step, which reads every weight once."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

READ_BYTES = 1 << 30


def best_s(work: Callable[[], object], runs: int = 5, at_least_s: float = 0.5) -> float:
    """The best of some runs after one that warms up."""
    work()
    best, spent, done = float("inf"), 0.0, 0
    while done < runs or spent < at_least_s:
        began = time.perf_counter()
        work()
        elapsed = time.perf_counter() - began
        best, spent, done = min(best, elapsed), spent + elapsed, done + 1
    return best


def read_rate(num_bytes: int = READ_BYTES) -> float:
    """Bytes a second of a plain read by all of torch's threads."""
    data = torch.ones(num_bytes // 4, dtype=torch.float32)
    return data.nbytes / best_s(data.sum)


def read_rate_with(threads: int, num_bytes: int = READ_BYTES) -> float:
    """The same with so many threads. Mutates: torch's number of threads, for as long as it takes"""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return read_rate(num_bytes)
    finally:
        torch.set_num_threads(before)
