"""Profile: everything chosen for one replica of a model, with what it is predicted to need and do.

Plain frozen data; `to_json` and `from_json` are how it is stored in a plan. Tokens per second are of one replica.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import msgspec

from daemon.planning.budget import DeviceBudget
from daemon.planning.live_bounds import LiveBounds
from daemon.planning.strategy import Strategy
from engine.messages import Knobs

ADAPTERS = "adapters"
# A pair stored in two bytes may be held in four; B of side-by-side projections is padded with zeros.
_ADAPTER_WIDENING = 4


@dataclass(frozen=True, slots=True)
class MemoryItem:
    name: str  # "weights", "KV pages", ...
    size_bytes: int
    detail: str


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Peak memory of the worker on its device."""

    items: tuple[MemoryItem, ...]
    kv_bytes_per_token: int

    @property
    def total_bytes(self) -> int:
        return sum(item.size_bytes for item in self.items)

    def of(self, name: str) -> int:
        return sum(item.size_bytes for item in self.items if item.name == name)


@dataclass(frozen=True, slots=True)
class SpeedEstimate:
    decode_tok_s: float  # one stream alone
    decode_ms: float  # ... its time per token
    batch_tok_s: float  # all streams together at knobs.max_running
    prefill_tok_s: float
    first_token_s: float  # a 512-token prompt on an idle worker
    limited_by: str  # what a decode step waits for
    rates_source: str  # "measured" or "shipped": where bandwidth and rates come from


@dataclass(frozen=True, slots=True)
class Choice:
    """One thing that was decided, and a sentence why."""

    topic: str
    value: str
    reason: str


@dataclass(frozen=True, slots=True)
class AdapterRef:
    """An imported LoRA adapter that the worker loads with the model."""

    name: str
    path: str
    size_bytes: int  # as stored


@dataclass(frozen=True, slots=True)
class OnDemandTerms:
    """A model that is loaded when it is asked for."""

    keep_alive_s: float = 600.0  # unused for so long, it is put away
    pinned: bool = False  # once loaded it stays


@dataclass(frozen=True, slots=True)
class Profile:
    model: str
    path: str
    strategy: Strategy
    device: str  # as WorkerConfig.device
    device_name: str
    weight_format: str
    dtype: str  # activations
    kv_dtype: str
    context_tokens: int  # longest sequence
    users: int  # streams that run at once
    kv_tokens: int  # tokens that the KV pool holds
    page_tokens: int
    threads: int  # 0 where the device is not a CPU
    knobs: Knobs
    memory: MemoryEstimate
    speed: SpeedEstimate
    weights: str = "stored"  # what matrices are rounded to at load
    activation: str = "exact"  # what kernels may round activations of many rows to
    choices: tuple[Choice, ...] = ()
    generates: bool = True  # False: an encoder, which embeds texts and keeps no KV
    adapters: tuple[AdapterRef, ...] = ()
    bounds: LiveBounds | None = None  # how far load may move the knobs; None: not at all
    swap_bytes: int = 0  # host memory for the pages of preempted requests
    on_demand: OnDemandTerms | None = None  # None: loaded as long as its plan is in force

    def with_model(self, name: str, path: str) -> Profile:
        """The same profile under the name and place a model has once it is imported."""
        return replace(self, model=name, path=path)

    def with_adapters(self, adapters: tuple[AdapterRef, ...]) -> Profile:
        """The same profile with exactly these, their memory counted."""
        items = tuple(item for item in self.memory.items if item.name != ADAPTERS)
        if adapters:
            size = sum(adapter.size_bytes for adapter in adapters) * _ADAPTER_WIDENING
            items += (MemoryItem(ADAPTERS, size, ", ".join(adapter.name for adapter in adapters)),)
        return replace(self, adapters=adapters, memory=replace(self.memory, items=items))

    def to_json(self) -> dict[str, Any]:
        built: dict[str, Any] = msgspec.to_builtins(self)
        return built

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Profile:
        """Raises: msgspec.ValidationError when a field is missing or of another type."""
        return msgspec.convert(data, cls)


@dataclass(frozen=True, slots=True)
class WhyNot:
    """A candidate that was rejected: both numbers, and the nearest change that would make it run."""

    candidate: str
    reason: str
    need_bytes: int | None  # None: memory is not what stands in the way
    have_bytes: int | None
    nearest: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """A profile that would run, in the order of the strategy's preference."""

    profile: Profile
    score: float  # higher is better under the strategy; comparable within one answer only
    note: str


@dataclass(frozen=True, slots=True)
class PlanAnswer:
    """What `bayard plan` says of one model on one machine."""

    model: str
    strategy: Strategy
    chosen: Profile | None
    candidates: tuple[Candidate, ...]
    why_not: tuple[WhyNot, ...]
    notes: tuple[str, ...]
    budgets: tuple[DeviceBudget, ...]

    @property
    def fits(self) -> bool:
        return self.chosen is not None
