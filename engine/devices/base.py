"""What the engine asks of a device. Choices are made by capability, never by product name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Capabilities:
    bf16: bool
    fp8: bool
    triton: bool
    graphs: bool
    host_visible_memory: bool

    def names(self) -> frozenset[str]:
        """Those it has, as the kernel registry asks for them."""
        return frozenset(field.name for field in fields(self) if getattr(self, field.name))


class Device(Protocol):
    torch_device: torch.device
    default_dtype: torch.dtype
    index_dtype: torch.dtype  # of a batch's indices
    capabilities: Capabilities
    runs_behind: bool  # work is queued and runs by itself
    notes: list[str]  # fall-backs taken, one sentence each

    def free_bytes(self) -> int:
        """Memory that may still be allocated."""
        ...

    def used_bytes(self) -> int:
        """Device memory this process holds; 0 where it is the host's own."""
        ...

    def synchronize(self) -> None:
        """Wait for all that is queued."""
        ...

    def release_unused(self) -> None:
        """Give back what an allocator keeps for later."""
        ...

    def copy_to_device(self, array: NDArray[np.int32] | NDArray[np.float32]) -> torch.Tensor: ...

    def copy_to_host(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Callable[[], None]]:
        """A host tensor being filled behind the caller's back, and what waits for it."""
        ...

    def mark(self) -> Callable[[], None]:
        """What waits for all that is queued now."""
        ...

    def pinned_ints(self, count: int) -> torch.Tensor:
        """Host memory [count] int32 that copies to the device run from without staging."""
        ...

    def capture_graph(self, run: Callable[[], torch.Tensor], memory: object) -> tuple[object, torch.Tensor, object]:
        """Record what run queues: the graph, run's result, and the memory pool for the next capture."""
        ...

    def replay_graph(self, graph: object) -> None: ...
