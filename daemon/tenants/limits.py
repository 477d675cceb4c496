"""What a tenant may take. None is unlimited."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

MINUTE_S = 60.0
MOST_REQUESTS = 2**31 - 1  # what a column of the database holds
MOST_TOKENS = 2**53 - 1  # what every reader of JSON holds exactly
_ROUNDING = 1e-6  # of a request or token: what sums of floats may be off by


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """models None allows every model; max_concurrency counts generations in the engine at once."""

    max_concurrency: int | None = None
    max_queue: int | None = None  # requests that may wait for max_concurrency; None: the daemon's own bound alone
    requests_per_minute: int | None = None
    request_burst: int | None = None  # requests at once after a pause; None: those of a minute
    tokens_per_minute: int | None = None
    token_burst: int | None = None
    tokens_per_day: int | None = None  # calendar day and month, in UTC
    tokens_per_month: int | None = None
    max_context_tokens: int | None = None  # prompt and output of one choice
    max_output_tokens: int | None = None
    share: float | None = None  # of the engines' tokens, beside other tenants of its priority; None: 1, as they have
    models: frozenset[str] | None = None

    @property
    def weight(self) -> float:
        """The share as the scheduler takes it."""
        return 1.0 if self.share is None else self.share

    def allows_model(self, model: str) -> bool:
        return self.models is None or model in self.models


@dataclass(frozen=True, slots=True)
class RateFigure:
    """One rate of a tenant as it stands now. what: "requests" or "tokens"."""

    what: str
    limit: int  # a minute
    remaining: int
    reset_s: float  # until nothing of it is used any more


class Bucket:
    """A rate per minute that refills steadily, up to `burst`. It may go below zero: one request may be larger."""

    def __init__(self, per_minute: int, clock: Callable[[], float], burst: int | None = None) -> None:
        self.per_minute = per_minute
        self.burst = per_minute if burst is None else burst
        self._clock = clock
        self._level = float(self.burst)
        self._at_mono = clock()

    def wait_s(self, amount: float) -> float:
        """Seconds until `amount` can be taken; 0 if now. What is larger than the burst needs a full bucket."""
        self._refill()
        missing = min(amount, self.burst) - self._level
        return 0.0 if missing < _ROUNDING else missing * MINUTE_S / self.per_minute

    def figure(self, what: str) -> RateFigure:
        self._refill()
        used = self.burst - self._level
        return RateFigure(what, self.per_minute, max(0, int(self._level)), max(0.0, used * MINUTE_S / self.per_minute))

    def take(self, amount: float) -> None:
        self._refill()
        self._level -= amount

    def give_back(self, amount: float) -> None:
        """What was taken and not used."""
        self._refill()
        self._level = min(self.burst, self._level + amount)

    def resize(self, per_minute: int, burst: int | None) -> None:
        """New figures; what was used stays used."""
        self._refill()
        used = self.burst - self._level
        self.per_minute = per_minute
        self.burst = per_minute if burst is None else burst
        self._level = self.burst - used

    def _refill(self) -> None:
        now = self._clock()
        # a clock that stands or goes back gives nothing and takes nothing
        self._level = min(self.burst, self._level + max(0.0, now - self._at_mono) * self.per_minute / MINUTE_S)
        self._at_mono = now
