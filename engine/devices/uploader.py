"""Uploader: threads that take host memory to a device, through pinned buffers and from one queue for all tensors.

A copy from pageable memory (a mapped file) goes through the driver's one staging thread, at a fifth of what the link
can do. Here each thread fills one pinned buffer while its other one is on its way. Whoever queues the next tensors
before it needs them keeps all threads busy from one tensor to the next. Source: CUDA C++ Best Practices Guide, section
on pinned memory.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

# On a host of 16 cores with a link of 55 GB/s one tensor of 2 GiB in a mapped file goes at 45 to 48 GB/s with 8 threads
# and 8 to 16 MiB, at 31 to 46 with 16 threads; with 4 MiB at 26. Pinning the file's own pages in the place of buffers
# gave 22 at best: the driver pins with one thread at a time.
BUFFER_BYTES = 8 << 20
LEAST_PIECE_BYTES = 1 << 20
MAX_THREADS = 8


Key = tuple[int, int]  # where bytes of the host's memory lie, and how many


class Stored(NamedTuple):
    """Bytes of the host's memory, which may be a file's. Made for each of many small tensors, so it holds no view."""

    whole: Tensor  # [n] uint8, what they are part of
    start: int
    num_bytes: int
    address: int  # of the first
    file: int = -1  # a descriptor of the file that whole is a map of, open for as long as they are sent; -1: none

    @classmethod
    def of(cls, tensor: Tensor) -> Stored:
        """All of a contiguous tensor."""
        return cls(tensor.view(-1).view(torch.uint8), 0, tensor.nbytes, tensor.data_ptr())

    @property
    def key(self) -> Key:
        return self.address, self.num_bytes


Group = tuple[Sequence[Stored], Tensor]  # what is to lie side by side on a device, and where


class Sent(Protocol):
    """A group on its way to a device."""

    @property
    def target(self) -> Tensor: ...


class Sends(Protocol):
    """What sends tensors: see Uploader."""

    device: torch.device

    def copy(self, source: Tensor, target: Tensor) -> None: ...
    def start(self, groups: Iterable[Group]) -> Sequence[Sent]: ...
    def finish(self, sending: Any) -> None: ...
    def drop(self, sending: Any) -> None: ...
    def close(self) -> None: ...


class Sending:
    """A group on its way to a device. Owner: who asked for it; its last piece's thread ends it."""

    __slots__ = ("_done", "error", "pieces", "sources", "target")

    def __init__(self, sources: Sequence[Stored], target: Tensor) -> None:
        self.sources = sources  # kept alive until they are read
        self.target = target
        self.pieces = 0  # left to be sent; changed under the uploader's lock
        self.error: Exception | None = None
        self._done = threading.Event()

    def end(self) -> None:
        self._done.set()

    def wait(self) -> None:
        """Blocks: until all its pieces are queued on the device's stream, so that its sources have been read."""
        self._done.wait()


Piece = tuple[Sending, Tensor, Tensor]  # of which group; some of its bytes, and where they go
Job = list[Piece]  # what one buffer takes


class Uploader:
    """Owner: a load, or what uploads one tensor. Its threads and buffers live until it is closed.

    api: torch.cuda, or what has its streams and events
    """

    def __init__(self, device: torch.device, api: Any = None, *, threads: int = 0, pinned: bool = True) -> None:
        self.device = device
        self._api: Any = getattr(torch, device.type) if api is None else api
        self._pinned = pinned
        self._stream = self._api.Stream(device)
        self._queue: SimpleQueue[Job | None] = SimpleQueue()
        self._lock = threading.Lock()
        self.threads = threads or min(MAX_THREADS, len(os.sched_getaffinity(0)))
        for number in range(self.threads):
            threading.Thread(target=self._work, name=f"upload-{number}", daemon=True).start()

    def copy(self, source: Tensor, target: Tensor) -> None:
        """One tensor that is wanted now. Shapes: both [bytes] uint8. Blocks: until the source has been read."""
        (sending,) = self.start([([Stored.of(source)], target)], piece_bytes(source.shape[0], self.threads))
        self.finish(sending)

    def start(self, groups: Iterable[Group], piece: int = BUFFER_BYTES) -> list[Sending]:
        """Queue groups. The targets must be new: what the current stream does before now may still use their memory.

        Shapes: a group's target is [bytes] uint8, as many as its sources have
        """
        self._stream.wait_stream(self._api.current_stream(self.device))
        sendings = [Sending(sources, target) for sources, target in groups]
        jobs = list(jobs_of(sendings, piece))
        for job in jobs:
            for sending, _, _ in job:
                sending.pieces += 1
        empty = [sending for sending in sendings if not sending.pieces]
        for job in jobs:
            self._queue.put(job)
        for sending in empty:
            sending.end()
        return sendings

    def finish(self, sending: Sending) -> None:
        """The current stream waits for the copy. Blocks: until the source has been read. Raises: what its thread met"""
        sending.wait()
        if sending.error is not None:
            raise sending.error
        self._api.current_stream(self.device).wait_stream(self._stream)

    def drop(self, sending: Sending) -> None:
        """Nobody wants it: its memory is the current stream's again. Blocks: until the source has been read."""
        sending.wait()
        if sending.error is None:
            self.finish(sending)

    def close(self) -> None:
        """End the threads after what is queued."""
        for _ in range(self.threads):
            self._queue.put(None)

    def _work(self) -> None:
        buffers: list[tuple[Tensor, Any]] = []
        turn = 0
        while True:
            job = self._queue.get()
            if job is None:
                break
            error: Exception | None = None
            try:
                if turn >= len(buffers):  # made by the thread itself: making them takes as long as filling some
                    made = torch.empty(BUFFER_BYTES, dtype=torch.uint8, pin_memory=self._pinned)
                    buffers.append((made, self._api.Event()))
                self._send(job, *buffers[turn])
            except Exception as failed:  # noqa: BLE001 - a thread's border: who waits for a tensor is told
                error = failed
            turn = (turn + 1) % 2
            with self._lock:
                for sending, _, _ in job:
                    sending.pieces -= 1
                    sending.error = sending.error or error
                ended = [sending for sending, _, _ in job if sending.pieces == 0]
            for sending in ended:
                sending.end()
        for _, sent in buffers:
            sent.synchronize()

    def _send(self, job: Job, buffer: Tensor, sent: Any) -> None:
        sent.synchronize()  # its last content has left
        with self._api.stream(self._stream):
            at = 0
            for _, source, target in job:
                # numpy copies on the calling thread alone; torch would start a team of its own in each.
                part = buffer[at : at + source.shape[0]]
                np.copyto(part.numpy(), source.numpy())
                target.copy_(part, non_blocking=True)
                at += source.shape[0]
            sent.record(self._stream)


def jobs_of(sendings: Iterable[Sending], piece: int) -> Iterator[Job]:
    """Large tensors in pieces of so many bytes, small ones several at once."""
    job: Job = []
    free = piece
    for sending in sendings:
        to = 0
        for source in sending.sources:
            start, end = source.start, source.start + source.num_bytes
            while start < end:
                count = min(end - start, free)
                job.append((sending, source.whole[start : start + count], sending.target[to : to + count]))
                start, to = start + count, to + count
                free -= count
                if not free:
                    yield job
                    job, free = [], piece
    if job:
        yield job


def piece_bytes(count: int, threads: int) -> int:
    """What a thread takes at once: small enough that all have a part of a tensor, large enough to be worth a turn."""
    share = -(-count // threads)
    rounded = -(-share // LEAST_PIECE_BYTES) * LEAST_PIECE_BYTES
    return min(BUFFER_BYTES, rounded)
