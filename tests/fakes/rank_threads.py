"""Ranks as threads of one process, one computing at a time: many models in the time that one spawned rank takes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from engine.parallel.group import RankGroup
from engine.parallel.shards import Shard

LIMIT_S = 30.0
T = TypeVar("T")


class _Meeting:
    def __init__(self, degree: int) -> None:
        self.turn = threading.Lock()
        self.barrier = threading.Barrier(degree, timeout=LIMIT_S)
        self.parts: list[torch.Tensor | None] = [None] * degree


class ThreadGroup(RankGroup):
    def __init__(self, shard: Shard, meeting: _Meeting) -> None:
        self.shard = shard
        self.sums = 0
        self._meeting = meeting

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        meeting = self._meeting
        meeting.parts[self.shard.rank] = x.clone()
        meeting.turn.release()
        try:
            meeting.barrier.wait()
            x.copy_(torch.stack([part for part in meeting.parts if part is not None]).sum(dim=0))
            meeting.barrier.wait()  # nobody writes its next part before all have read this one
        finally:
            meeting.turn.acquire()
        self.sums += 1
        return x


def lone_rank(rank: int, degree: int) -> ThreadGroup:
    """A rank that never computes."""
    return ThreadGroup(Shard(rank, degree), _Meeting(degree))


def run_rank_threads(work: Callable[[ThreadGroup], T], degree: int) -> list[T]:
    """What work gave on each rank. Raises: what a rank raised"""
    meeting = _Meeting(degree)

    def rank(number: int) -> T:
        with meeting.turn:
            try:
                return work(ThreadGroup(Shard(number, degree), meeting))
            except BaseException:
                meeting.barrier.abort()
                raise

    with ThreadPoolExecutor(degree) as pool:
        return list(pool.map(rank, range(degree)))
