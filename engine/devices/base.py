"""What the engine asks of a device. Choices are made by capability, never by product name."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Protocol

import torch


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
    capabilities: Capabilities
    notes: list[str]  # fall-backs taken, one sentence each

    def free_bytes(self) -> int:
        """Memory that may still be allocated."""
        ...

    def used_bytes(self) -> int:
        """Device memory this process holds; 0 where it is the host's own."""
        ...

    def synchronize(self) -> None: ...
