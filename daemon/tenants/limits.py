"""What a tenant may take. None is unlimited."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

MINUTE_S = 60.0


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """models None allows every model; max_concurrency counts generations in the engine at once."""

    max_concurrency: int | None = None
    max_queue: int | None = None  # requests that may wait for max_concurrency; None: the daemon's own bound alone
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_context_tokens: int | None = None  # prompt and output of one choice
    max_output_tokens: int | None = None
    models: frozenset[str] | None = None

    def allows_model(self, model: str) -> bool:
        return self.models is None or model in self.models


class Bucket:
    """A rate per minute that refills steadily. It may go below zero when the price is known only afterwards."""

    def __init__(self, per_minute: int, clock: Callable[[], float]) -> None:
        self.per_minute = per_minute
        self._clock = clock
        self._level = float(per_minute)
        self._at_mono = clock()

    def wait_s(self, amount: float) -> float:
        """Seconds until `amount` can be taken; 0 if now."""
        self._refill()
        missing = min(amount, self.per_minute) - self._level
        return max(0.0, missing * MINUTE_S / self.per_minute)

    @property
    def remaining(self) -> int:
        """What can be taken now."""
        self._refill()
        return max(0, int(self._level))

    @property
    def full_in_s(self) -> float:
        """Seconds until nothing of it is used any more."""
        self._refill()
        return max(0.0, (self.per_minute - self._level) * MINUTE_S / self.per_minute)

    def take(self, amount: float) -> None:
        self._refill()
        self._level -= amount

    def _refill(self) -> None:
        now = self._clock()
        self._level = min(self.per_minute, self._level + (now - self._at_mono) * self.per_minute / MINUTE_S)
        self._at_mono = now
