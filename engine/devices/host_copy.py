"""HostCopy: contents of a device's storages in host memory, while the device's memory is somebody else's.

A storage is emptied in place and filled in place, so every tensor and view of it is as it was. Host memory is pinned
where the device's driver can: copies then run at the link's own speed.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from engine.devices.base import Device
from engine.devices.cpu import CpuDevice
from engine.errors import DoesNotFit

ALIGNED = 512
LEFT_BYTES = 1 << 30  # of host memory, for everybody else
MAX_THREADS = 8
_SMALL_PAGE = 4096

Progress = Callable[[int, int], None]  # done bytes, total bytes


class HostCopy:
    """Owner: a sleeping engine."""

    def __init__(self, storages: Sequence[torch.UntypedStorage], device: Device, progress: Progress) -> None:
        """Mutates: the storages, which hold nothing afterwards. Blocks: while they are copied.

        Raises: DoesNotFit if the host has no room; nothing has changed then
        """
        self._storages = list(storages)
        self._sizes = [storage.nbytes() for storage in self._storages]
        self._addresses = [storage.data_ptr() for storage in self._storages]
        self._device = device
        self.num_bytes = sum(-(-size // ALIGNED) * ALIGNED for size in self._sizes)
        free = CpuDevice().free_bytes()
        if self.num_bytes + LEFT_BYTES > free:
            raise DoesNotFit(
                f"{self.num_bytes:,} bytes of weights do not fit the {free:,} bytes of host memory that are free, "
                f"with {LEFT_BYTES:,} left for others.",
                "Let the worker end instead.",
            )
        self._memory = _HostMemory(self.num_bytes, device.torch_device)
        done = 0
        for size, storage, host in zip(self._sizes, self._storages, self._places(), strict=True):
            host.copy_(_bytes_of(storage, device.torch_device), non_blocking=True)
            done += size
            progress(done, self.num_bytes)
        device.synchronize()
        for storage in self._storages:
            storage.resize_(0)
        device.release_unused()

    def restore(self, progress: Progress, beside_bytes: int = 0) -> bool:
        """Bring all of it back. True: each storage lies where it lay. Blocks: while it is copied.

        beside_bytes: what else has to fit

        Raises: DoesNotFit if the device's memory is taken by now; nothing has changed then
        """
        free = self._device.free_bytes()
        if sum(self._sizes) + beside_bytes > free:
            raise DoesNotFit(
                f"{sum(self._sizes):,} bytes of weights and {beside_bytes:,} beside them do not fit the {free:,} bytes "
                "that the device has free.",
                "Put another model away first.",
            )
        for size, storage in zip(self._sizes, self._storages, strict=True):
            storage.resize_(size)
        done = 0
        for size, storage, host in zip(self._sizes, self._storages, self._places(), strict=True):
            _bytes_of(storage, self._device.torch_device).copy_(host, non_blocking=True)
            done += size
            progress(done, self.num_bytes)
        self._device.synchronize()
        self._memory.close()
        return [storage.data_ptr() for storage in self._storages] == self._addresses

    def _places(self) -> list[torch.Tensor]:
        found, at = [], 0
        for size in self._sizes:
            found.append(self._memory.bytes[at : at + size])
            at += -(-size // ALIGNED) * ALIGNED
        return found


class _HostMemory:
    """Anonymous memory in large pages, touched by several threads at once, and pinned where that can be done."""

    def __init__(self, num_bytes: int, device: torch.device) -> None:
        self._map = mmap.mmap(-1, max(num_bytes, 1))
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._map.madvise(mmap.MADV_HUGEPAGE)
        view = np.frombuffer(self._map, dtype=np.uint8)
        threads = min(MAX_THREADS, len(os.sched_getaffinity(0)))
        share = -(-len(view) // threads)
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda n: view[n * share : (n + 1) * share : _SMALL_PAGE].fill(0), range(threads)))
        self.bytes: torch.Tensor = torch.from_numpy(view)[:num_bytes]
        self._runtime: Any = torch.cuda.cudart() if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        if self._runtime is not None and int(self._runtime.cudaHostRegister(self.bytes.data_ptr(), len(view), 0)):
            self._runtime = None  # the copies are slower and as good

    def close(self) -> None:
        if self._runtime is not None:
            self._runtime.cudaHostUnregister(self.bytes.data_ptr())
        del self.bytes
        try:
            self._map.close()
        except BufferError:  # a view is left to the collector, which closes it with the last one
            return


def _bytes_of(storage: torch.UntypedStorage, device: torch.device) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=device).set_(storage)
