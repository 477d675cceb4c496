"""upload: large host tensors to a device at the link's own speed.

A copy from pageable memory (a mapped file) goes through the driver's one staging thread, at a fifth of what the link
can do. Here several threads fill pinned buffers while others are on their way. Source: CUDA C++ Best Practices Guide,
section on pinned memory.
"""

from __future__ import annotations

import functools
import os
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import numpy as np
import torch

# On a host of 16 cores with a link of 55 GB/s, a mapped file in memory: 29 to 33 GB/s with 16 threads and pieces of
# 16 MiB, 24 to 26 with 4 MiB, 7 with 1 MiB, 20 to 27 with 8 threads, 8 plainly. Pinning the file's own pages in the
# place of buffers gave 22 at best: the driver pins with one thread at a time.
BUFFER_BYTES = 8 << 20
LEAST_PIECE_BYTES = 1 << 20
MAX_THREADS = 16
SMALLEST_BYTES = 4 << 20  # below, the plain copy is as fast


def upload(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The tensor on its device; itself if it is there already. Blocks: until the host's memory has been read."""
    staged = device.type == "cuda" and tensor.device.type == "cpu" and not tensor.is_pinned()
    if not staged or tensor.nbytes < SMALLEST_BYTES or not tensor.is_contiguous():
        return tensor.to(device)
    out = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
    _uploader(device).copy(tensor.view(-1).view(torch.uint8), out.view(-1).view(torch.uint8))
    return out


@functools.cache
def _uploader(device: torch.device) -> _Uploader:
    return _Uploader(device)


class _Uploader:
    """Pinned buffers, two a thread, and a stream to copy on. Owner: the process; one copy at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._api: Any = getattr(torch, device.type)
        self._stream = self._api.Stream(device)
        self._threads = min(MAX_THREADS, len(os.sched_getaffinity(0)))
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="upload")
        # Two buffers a thread: one is filled while the other is on its way, also from one tensor to the next.
        self._buffers = torch.empty(2 * self._threads, BUFFER_BYTES, dtype=torch.uint8, pin_memory=True)
        self._sent = [self._api.Event() for _ in range(2 * self._threads)]
        self._turns = [0] * self._threads

    def copy(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Shapes: both [bytes] uint8. The current stream waits for the copies; the source has been read on return."""
        self._stream.wait_stream(self._api.current_stream(self._device))  # the target's memory may still be in use
        piece = piece_bytes(source.shape[0], self._threads)
        starts = range(0, source.shape[0], piece)
        each = [starts[thread :: self._threads] for thread in range(self._threads)]
        jobs = [self._pool.submit(self._send, n, mine, piece, source, target) for n, mine in enumerate(each) if mine]
        wait(jobs)
        for job in jobs:
            job.result()
        self._api.current_stream(self._device).wait_stream(self._stream)

    def _send(self, thread: int, starts: range, piece: int, source: torch.Tensor, target: torch.Tensor) -> None:
        with self._api.stream(self._stream):
            for start in starts:
                place = 2 * thread + self._turns[thread] % 2
                self._turns[thread] += 1
                count = min(piece, source.shape[0] - start)
                self._sent[place].synchronize()  # its last content has left
                # numpy copies on the calling thread alone; torch would start a team of its own in each.
                np.copyto(self._buffers[place, :count].numpy(), source[start : start + count].numpy())
                target[start : start + count].copy_(self._buffers[place, :count], non_blocking=True)
                self._sent[place].record(self._stream)


def piece_bytes(count: int, threads: int) -> int:
    """What a thread takes at once: small enough that all have a part of a tensor, large enough to be worth a turn."""
    share = -(-count // threads)
    rounded = -(-share // LEAST_PIECE_BYTES) * LEAST_PIECE_BYTES
    return min(BUFFER_BYTES, rounded)
