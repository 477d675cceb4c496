"""RankGroup: the ranks of one replica, each a process, that compute every step together.

A thin border around torch.distributed: gloo between CPUs, NCCL between CUDA devices. All ranks are on one machine, so
they meet at a file and gloo stays on the loopback interface.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Self

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import FileStore, PrefixStore, Store  # type: ignore[attr-defined]

from engine.errors import ConfigError, WorkerLost
from engine.parallel.shards import Shard

# What is set already stays. NVLink's multicast is off: it can put the GPUs of a shared machine out of service.
_DEFAULTS = {"nccl": {"NCCL_NVLS_ENABLE": "0"}, "gloo": {"GLOO_SOCKET_IFNAME": "lo"}}

_LOOK = "See the log of that rank for why; a replica starts anew with all its ranks."


class RankGroup:
    """Owner: a rank's process, which is in one group at a time. Every rank makes the same calls in the same order."""

    def __init__(self, shard: Shard, store: Store, exchange_s: float) -> None:
        self.shard = shard
        self._store = store
        self._exchange_s = exchange_s

    @classmethod
    def join(cls, shard: Shard, meeting_file: Path, device: torch.device, *, meet_s: float, exchange_s: float) -> Self:
        """Meet the other ranks; meeting_file is new, and the same for all of them.

        meet_s: how long to wait for the others to come; exchange_s: for the slowest to come to an exchange, so for it
        to load before the first one. On CUDA exchanges are queued: there it is NCCL's watchdog that ends the process
        when exchange_s is over, and no rank is named.
        Blocks: until all ranks are there
        Raises: WorkerLost naming the ranks that did not come, ConfigError without a folder to meet in
        """
        if not meeting_file.parent.is_dir():
            raise ConfigError(f"ranks cannot meet in {meeting_file.parent}: it is no folder.", "Create it first.")
        backend = "nccl" if device.type == "cuda" else "gloo"
        for name, value in _DEFAULTS[backend].items():
            os.environ.setdefault(name, value)
        store = FileStore(str(meeting_file), shard.degree)
        group = cls(shard, store, exchange_s)
        absent = group._absent("came", meet_s)
        if absent:
            raise WorkerLost(f"{_ranks(absent)} of {shard.degree} did not come within {meet_s:g} s", _LOOK)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        try:
            dist.init_process_group(
                backend,
                store=PrefixStore("group", store),
                rank=shard.rank,
                world_size=shard.degree,
                timeout=timedelta(seconds=exchange_s),
            )
        except RuntimeError as error:
            raise group._lost("meeting", error) from error
        return group

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum over all ranks, in x itself. Mutates: x. Raises: WorkerLost naming the ranks that are missing"""
        self._together("a sum", lambda: dist.all_reduce(x))
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        """Every rank's columns side by side, by rank. Shapes: [..., N] -> [..., degree * N]. Raises: as all_reduce"""
        parts = [torch.empty_like(x) for _ in range(self.shard.degree)]
        self._together("a gathering", lambda: dist.all_gather(parts, x.contiguous()))
        return torch.cat(parts, dim=-1)

    def close(self) -> None:
        """Leave; waits for nobody."""
        dist.destroy_process_group()

    def _together(self, what: str, exchange: Callable[[], object]) -> None:
        try:
            exchange()
        except RuntimeError as error:
            raise self._lost(what, error) from error

    def _lost(self, what: str, error: RuntimeError) -> WorkerLost:
        """What failed, with the ranks that no longer answer: those that are there fail like this one, and sign here."""
        absent = self._absent("failed", self._exchange_s)
        cause = str(error).splitlines()[0]
        if not absent:
            return WorkerLost(f"{what} of {self.shard.degree} ranks failed though all are there: {cause}", _LOOK)
        return WorkerLost(f"{_ranks(absent)} of {self.shard.degree} went missing during {what}: {cause}", _LOOK)

    def _absent(self, page: str, limit_s: float) -> list[int]:
        """Sign a page of the meeting file -> the ranks that did not within the limit. Blocks: until all have."""
        self._store.set(f"{page}/{self.shard.rank}", "1")
        until_mono = time.monotonic() + limit_s
        return [rank for rank in range(self.shard.degree) if not self._signed(f"{page}/{rank}", until_mono)]

    def _signed(self, key: str, until_mono: float) -> bool:
        left_s = max(until_mono - time.monotonic(), 0.001)
        try:
            self._store.wait([key], timedelta(seconds=left_s))
        except RuntimeError:  # a file store has no error of its own for a time limit
            return False
        return True


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
