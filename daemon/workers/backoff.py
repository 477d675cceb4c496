"""How long to wait before a worker is started again, and when to give up."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

DAY_S = 86_400.0


@dataclass(slots=True)
class Backoff:
    """Exponential with full jitter; latches after a row of fast exits. Owner: one ManagedWorker."""

    base_s: float
    max_s: float
    latch_after: int
    fast_exit_s: float
    rng: random.Random = field(default_factory=random.Random)
    fast_exits: int = 0

    def next_delay_s(self, *, reached_ready: bool, served_s: float) -> float | None:
        """Count one exit; None means latched.

        An exit is fast if the worker never became ready, or did not stay so for fast_exit_s.
        """
        if reached_ready and served_s >= self.fast_exit_s:
            self.fast_exits = 0
            return self.rng.uniform(0.0, min(self.max_s, self.base_s))
        self.fast_exits += 1
        if self.fast_exits >= self.latch_after:
            return None
        return self.rng.uniform(0.0, min(self.max_s, self.base_s * 2 ** (self.fast_exits - 1)))

    def reset(self) -> None:
        self.fast_exits = 0


class Restarts:
    """How often a worker was started again by itself. Owner: a ManagedWorker."""

    def __init__(self) -> None:
        self.total = 0
        self._at_mono: deque[float] = deque(maxlen=1000)

    def note(self, at_mono: float) -> None:
        self.total += 1
        self._at_mono.append(at_mono)

    def within_a_day(self, now_mono: float) -> int:
        return sum(1 for at in self._at_mono if now_mono - at < DAY_S)
