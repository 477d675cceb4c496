"""Sleeper: an engine that gives its memory back and keeps what it took long to make.

The KV pool's memory goes. On an accelerator the weights move to host memory; on a CPU they stay where they are, since
host memory is what they would move to. Process, compiled kernels and sizes stay. Weights come back into the storages
they left, so nothing that points at them is made anew; only where the driver gives them other addresses are the
captured graphs, which hold addresses, captured again, in the idle moments after waking.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from engine.core import EngineCore
from engine.devices import Device
from engine.devices.host_copy import HostCopy
from engine.devices.host_heap import trim_heap
from engine.devices.reachable import storages_of
from engine.encoder.core import EncoderCore
from engine.kv.buffer import empty_buffer, refill_buffer
from engine.messages import Slept, Woken

Progress = Callable[[str, int, int], None]  # stage, done bytes, total bytes


class Sleeper:
    """Owner: the worker. No request may be in the engine while it sleeps."""

    def __init__(self, core: EngineCore | EncoderCore, device: Device, progress: Progress) -> None:
        self._core = core
        self._device = device
        self._progress = progress
        self._weights: HostCopy | None = None
        self._pool_bytes = 0
        self._pool_address = 0
        self.is_asleep = False

    def sleep(self) -> Slept:
        """Blocks: while weights are copied. Raises: DoesNotFit if the host has no room for them; all is as before."""
        began = time.monotonic()
        core, device = self._core, self._device
        pool = None
        if isinstance(core, EngineCore):
            core.settle()
            pool = core.pool
        device.synchronize()
        moved = 0
        if device.torch_device.type != "cpu":
            kept = {pool.untyped_storage().data_ptr()} if pool is not None else set()
            weights = [s for s in storages_of(core.holders, device.torch_device) if s.data_ptr() not in kept]
            self._weights = HostCopy(weights, device, lambda done, total: self._progress("sleeping", done, total))
            moved = self._weights.num_bytes
        if pool is not None:
            self._pool_bytes, self._pool_address = pool.untyped_storage().nbytes(), pool.data_ptr()
            empty_buffer(pool)
        device.release_unused()
        trim_heap()
        self.is_asleep = True
        return Slept(time.monotonic() - began, pool_bytes=self._pool_bytes, moved_bytes=moved)

    def wake(self) -> Woken:
        """Blocks: while weights are copied. Raises: DoesNotFit if the device is full by now; it sleeps on then."""
        began = time.monotonic()
        same_place = True
        if self._weights is not None:
            same_place = self._weights.restore(
                lambda done, total: self._progress("waking", done, total), beside_bytes=self._pool_bytes
            )
            self._weights = None
        if isinstance(self._core, EngineCore):
            refill_buffer(self._core.pool, self._pool_bytes)
            same_place = same_place and self._core.pool.data_ptr() == self._pool_address
            if not same_place:
                self._core.runner.forget_graphs()
        self.is_asleep = False
        return Woken(time.monotonic() - began, graphs_kept=same_place)
