"""NativeUploader: as Uploader, with threads that never wait for Python's lock.

A piece takes a fifth of a millisecond on its way; threads of Python, which hand a lock around for each of its four
calls to the driver, came to half the link's rate, and to a sixth with a mixture's many small matrices.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.devices.uploader import Group, Stored, piece_bytes
from engine.errors import WorkerError
from engine.kernels.cpu import abi, library

# On a host of 16 cores with a link of 55.1 GB/s, 3 GB of a file in the page cache: read, 52 GB/s with 12 threads and
# buffers of 4 MiB, 51 with 2 MiB, 48 with 1 MiB, 40 with 8 MiB; 50 with 16 threads. From the file's map 41 to 44.
MAX_THREADS = 12
BUFFER_BYTES = 4 << 20
NO_TIMING = 2  # of an event: CU_EVENT_DISABLE_TIMING
# The driver's functions, in the order of abi.Link.
DRIVER = {
    "use": "cuCtxSetCurrent",
    "pin": "cuMemHostRegister_v2",
    "unpin": "cuMemHostUnregister",
    "make_event": "cuEventCreate",
    "copy": "cuMemcpyHtoDAsync_v2",
    "record": "cuEventRecord",
    "wait": "cuEventSynchronize",
}


STORED = np.dtype(abi.Stored)


class NativeSending:
    """A group on its way to a device."""

    __slots__ = ("done", "job", "sources", "target")

    def __init__(self, sources: Sequence[Stored], target: Tensor, job: int) -> None:
        self.sources = sources  # kept alive until they are read
        self.target = target
        self.job = job
        self.done = False  # and nothing failed


class NativeUploader:
    """Owner: a load, or what uploads one tensor. Its threads and buffers live until it is closed.

    link: the driver's functions, context and a stream; api: torch.cuda, or what has its streams
    """

    def __init__(self, device: torch.device, link: abi.Link, stream: Any, api: Any, *, threads: int = 0) -> None:
        self.device = device
        self._api, self._stream = api, stream
        self._library = library.load()
        self.threads = threads or min(MAX_THREADS, len(os.sched_getaffinity(0)))
        self._link = link
        self._sender = self._library.bayard_sender_new(ctypes.byref(link), self.threads, BUFFER_BYTES)
        if not self._sender:
            raise WorkerError(f"{self.threads} threads that send weights to {device} could not be made.")
        self._seen = 0  # jobs up to this one are waited for by the current stream

    def copy(self, source: Tensor, target: Tensor) -> None:
        """One tensor that is wanted now. Shapes: both [bytes] uint8. Blocks: until the source has been read."""
        (sending,) = self.start([([Stored.of(source)], target)], piece_bytes(source.shape[0], self.threads))
        self.finish(sending)

    def start(self, groups: Iterable[Group], piece: int = BUFFER_BYTES) -> list[NativeSending]:
        """Queue groups. The targets must be new: what the current stream does before now may still use their memory.

        Shapes: a group's target is [bytes] uint8, as many as its sources have
        """
        self._stream.wait_stream(self._api.current_stream(self.device))
        put, sender = self._library.bayard_sender_put, self._sender
        sendings = []
        for sources, target in groups:
            rows = [(address, start, count, file, 0) for _, start, count, address, file in sources]
            table = np.array(rows, dtype=STORED)
            job = put(sender, table.ctypes.data, len(rows), target.data_ptr(), piece)
            if job < 0:
                raise MemoryError("no memory for the list of what is sent to a device")
            sendings.append(NativeSending(sources, target, job))
        return sendings

    def finish(self, sending: NativeSending) -> None:
        """The current stream waits for the copy. Blocks: until the sources have been read.

        Raises: WorkerError with what the driver or the file system said
        """
        if sending.done:
            return
        error = self._library.bayard_sender_wait(self._sender, sending.job)
        if error:
            raise self._failed(sending, error)
        sending.done = True
        if sending.job > self._seen:
            done = self._library.bayard_sender_done(self._sender)
            self._api.current_stream(self.device).wait_stream(self._stream)
            self._seen = max(self._seen, done)

    def _failed(self, sending: NativeSending, error: int) -> WorkerError:
        size = sending.target.nbytes
        if error < 0:
            return WorkerError(
                f"Reading {size:,} bytes of weights for {self.device} failed: {os.strerror(-error)}.",
                "See whether the model's files are whole, and the kernel's log (dmesg).",
            )
        return WorkerError(
            f"Sending {size:,} bytes to {self.device} failed: its driver says {error}.",
            "See `bayard hw` and the kernel's log (dmesg).",
        )

    def drop(self, sending: NativeSending) -> None:
        """Nobody wants it: its memory is the current stream's again. Blocks: until the sources have been read."""
        if not sending.done and not self._library.bayard_sender_wait(self._sender, sending.job):
            self._api.current_stream(self.device).wait_stream(self._stream)

    def close(self) -> None:
        """Send what is queued, then end the threads."""
        self._library.bayard_sender_free(self._sender)
        self._sender = None


def native_uploader(device: torch.device) -> NativeUploader | None:
    """Of a device with NVIDIA's driver, where the library for the host is here; None elsewhere."""
    if device.type != "cuda" or torch.version.cuda is None or library.absent_reason() is not None:
        return None
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        found = {name: ctypes.cast(getattr(driver, of), ctypes.c_void_p).value for name, of in DRIVER.items()}
    except (OSError, AttributeError):
        return None
    context = ctypes.c_void_p()
    api: Any = torch.cuda
    with api.device(device):
        stream = api.Stream(device)
        api.synchronize(device)  # so that the context is there
        if driver.cuCtxGetCurrent(ctypes.byref(context)) or not context.value:
            return None
    link = abi.Link(**found, context=context.value, stream=stream.cuda_stream, event_flags=NO_TIMING)
    return NativeUploader(device, link, stream, api)
