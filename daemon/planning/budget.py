"""DeviceBudget: how much of one device a new worker may take, and why not more."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Claim:
    """Memory promised to somebody that live free memory does not show yet."""

    owner: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class DeviceBudget:
    """usable = min(live free, control group's limit, operator's setting) - reserve - claims."""

    device: str  # as WorkerConfig.device: "cpu", "cuda:0"
    name: str
    total_bytes: int | None
    limits: tuple[tuple[str, int], ...]  # (what it is, bytes); the smallest counts
    reserve_bytes: int
    claims: tuple[Claim, ...] = ()
    cores: int = 0  # CPU cores that may be used; 0 on an accelerator
    capabilities: frozenset[str] = frozenset()  # "avx2", "bf16", "fp8", ...
    holders: tuple[str, ...] = ()  # foreign processes that hold memory of the device
    unusable: str | None = None  # why this version runs nothing here

    @property
    def on_cpu(self) -> bool:
        return self.device == "cpu"

    @property
    def limited_by(self) -> str:
        return min(self.limits, key=lambda limit: limit[1])[0] if self.limits else "unknown memory"

    @property
    def usable_bytes(self) -> int:
        if self.unusable is not None or not self.limits:
            return 0
        smallest = min(size for _, size in self.limits)
        return max(0, smallest - self.reserve_bytes - sum(claim.size_bytes for claim in self.claims))
