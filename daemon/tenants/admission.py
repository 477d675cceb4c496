"""Admission: who may start now, who waits, who is turned away. Owner: TenantService; used on the event loop only."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from daemon.store.base import utc_now
from daemon.tenants.limits import Bucket, RateFigure
from daemon.tenants.principal import Principal
from daemon.tenants.quota import Quotas
from daemon.tenants.reservation import Reservation, reserve
from engine.errors import Draining, InvalidParameter, PermissionDenied, QueueFull, QuotaExceeded

_BUSY_RETRY_S = 1.0


@dataclass(slots=True)
class Ticket:
    """The right to run `weight` choices. Give it back exactly once; again does nothing."""

    tenant: _TenantLoad
    principal: Principal
    weight: int
    _admission: Admission
    _reservation: Reservation | None = None
    _released: bool = False

    def reserve(self, prompt_tokens: int, output_tokens: int = 0, *, flexible: bool = False) -> int:
        """Set tokens aside before they are made, so that streams side by side cannot spend them twice; once a ticket.

        Returns the output tokens that may be made: fewer than asked for only if flexible, for a request that named
        no maximum of its own.
        Raises: QuotaExceeded
        """
        assert self._reservation is None, "a ticket reserves once"
        load = self.tenant
        least = min(self.weight, output_tokens) if flexible else output_tokens
        self._reservation = reserve(
            self.principal, load.tokens, load.quotas, self._admission.now(), prompt_tokens, output_tokens, least
        )
        return self._reservation.output_tokens

    def rates(self) -> list[RateFigure]:
        """The tenant's rates a minute as they stand now; empty where it has none."""
        return self._admission.rates_of(self.principal)

    def release(self, total_tokens: int = 0) -> None:
        """Free the place, charge the tokens used and give back those that were reserved beyond them."""
        if not self._released:
            self._released = True
            self._admission._leave(self, total_tokens)


@dataclass(slots=True)
class _TenantLoad:
    running: int = 0
    waiting: deque[tuple[int, int | None, asyncio.Future[None]]] = field(default_factory=deque)
    requests: Bucket | None = None
    tokens: Bucket | None = None
    quotas: Quotas = field(default_factory=Quotas)


class Admission:
    """Bounds on what runs and waits, per tenant and over all of them: the one place where limits are enforced.

    engine_waiting tells how many choices the engines themselves hold back; they count as waiting too.
    """

    def __init__(
        self,
        max_queue: int,
        engine_waiting: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self.max_queue = max_queue
        self.now = now
        self._engine_waiting = engine_waiting
        self._clock = clock
        self._loads: dict[str, _TenantLoad] = {}
        self._num_waiting = 0
        self.resolve: Callable[[str], str] = lambda model: model  # the model that an alias means
        self.draining = False
        self.paused = ""  # why an operator holds new requests back; empty: nobody does

    @property
    def running(self) -> int:
        return sum(load.running for load in self._loads.values())

    @property
    def waiting(self) -> int:
        """Choices that wait here for their tenant's concurrency."""
        return self._num_waiting

    def running_of(self, tenant_id: str) -> int:
        load = self._loads.get(tenant_id)
        return load.running if load else 0

    def quotas_of(self, tenant_id: str) -> Quotas:
        """What the tenant used of its day and month; who reads the store at the start fills it in."""
        return self._loads.setdefault(tenant_id, _TenantLoad()).quotas

    def rates_of(self, principal: Principal) -> list[RateFigure]:
        """The tenant's rates by what they count, "requests" or "tokens", as they stand now."""
        load = self._sized(principal)
        return [rate.figure(what) for rate, what in ((load.requests, "requests"), (load.tokens, "tokens")) if rate]

    def knock(self, principal: Principal) -> None:
        """What every authenticated call passes, whatever it asks for. Charges nothing.

        Raises: QuotaExceeded while one of the tenant's rates is spent
        """
        load = self._sized(principal)
        for bucket, what in ((load.requests, "requests"), (load.tokens, "tokens")):
            wait_s = bucket.wait_s(1.0) if bucket else 0.0
            if bucket and wait_s > 0:
                raise QuotaExceeded(
                    f"tenant {principal.tenant_name} has used its {bucket.per_minute:,} {what} a minute.",
                    f"Try again in {wait_s:.1f} s.",
                    retry_after_s=wait_s,
                )

    def check_model(self, principal: Principal, model: str) -> None:
        """Raises: PermissionDenied"""
        limits = principal.limits
        if not (limits.allows_model(model) or limits.allows_model(self.resolve(model))):
            raise PermissionDenied(
                f"This key may not use the model {model[:128]!r}.", "Ask the administrator to allow it.", param="model"
            )

    async def enter(self, principal: Principal, model: str, weight: int) -> Ticket:
        """Wait for a place. Blocks: while the tenant runs as much as it may.

        Raises: PermissionDenied, Draining, QuotaExceeded, QueueFull, InvalidParameter
        """
        self._refuse_at_door(principal, model, weight)
        self.knock(principal)
        limits = principal.limits
        load = self._sized(principal)
        if load.requests:
            load.requests.take(1.0)
        ticket = Ticket(load, principal, weight, self)
        most = limits.max_concurrency
        if most is None or (load.running + weight <= most and not load.waiting):
            load.running += weight
            return ticket
        queued = sum(item[0] for item in load.waiting)
        if limits.max_queue is not None and queued + weight > limits.max_queue:
            raise QuotaExceeded(
                f"tenant {principal.tenant_name} runs {load.running} of {most} generations and "
                f"{queued} of {limits.max_queue} wait.",
                "Try again when one of them has ended.",
                retry_after_s=_BUSY_RETRY_S,
            )
        await self._wait(load, weight, most)
        return ticket

    def _refuse_at_door(self, principal: Principal, model: str, weight: int) -> None:
        if self.draining:
            raise Draining("Bayard is stopping and takes no new requests.", "Try again shortly.", retry_after_s=5.0)
        if self.paused:
            raise Draining(f"New requests are held back: {self.paused}.", "Try again shortly.", retry_after_s=5.0)
        self.check_model(principal, model)
        limits = principal.limits
        if limits.max_concurrency is not None and weight > limits.max_concurrency:
            # no 429, which clients send again by themselves: this can never be let in
            raise InvalidParameter(
                f"The request asks for {weight} generations at once; "
                f"tenant {principal.tenant_name} may run {limits.max_concurrency}.",
                "Ask for fewer.",
                param="n",
            )
        waiting = self._num_waiting + self._engine_waiting()
        if waiting >= self.max_queue:
            # how many of them are other tenants' is none of this one's business
            raise QueueFull(
                f"As many requests are waiting as may: {self.max_queue}.",
                "Try again shortly.",
                retry_after_s=_BUSY_RETRY_S,
            )

    def _sized(self, principal: Principal) -> _TenantLoad:
        """The tenant's load, with its rates as its limits are now."""
        limits = principal.limits
        load = self._loads.setdefault(principal.tenant_id, _TenantLoad())
        load.requests = self._bucket(load.requests, limits.requests_per_minute, limits.request_burst)
        load.tokens = self._bucket(load.tokens, limits.tokens_per_minute, limits.token_burst)
        return load

    def _bucket(self, bucket: Bucket | None, per_minute: int | None, burst: int | None) -> Bucket | None:
        if per_minute is None:
            return None
        if bucket is None:
            return Bucket(per_minute, self._clock, burst)
        if (bucket.per_minute, bucket.burst) != (per_minute, per_minute if burst is None else burst):
            bucket.resize(per_minute, burst)
        return bucket

    async def _wait(self, load: _TenantLoad, weight: int, most: int) -> None:
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        item = (weight, most, place)
        load.waiting.append(item)
        self._num_waiting += weight
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():  # let in, and gone in the same turn of the loop
                load.running -= weight
            elif item in load.waiting:
                load.waiting.remove(item)
            self._let_in(load)
            raise
        finally:
            self._num_waiting -= weight

    def _leave(self, ticket: Ticket, total_tokens: int) -> None:
        load = ticket.tenant
        load.running -= ticket.weight
        made = ticket._reservation or reserve(ticket.principal, None, load.quotas, self.now(), 0, 0, 0)
        made.settle(load.tokens, total_tokens)
        self._let_in(load)

    def _let_in(self, load: _TenantLoad) -> None:
        while load.waiting:
            weight, most, place = load.waiting[0]
            if most is not None and load.running + weight > most:
                return
            load.waiting.popleft()
            if not place.done():
                load.running += weight
                place.set_result(None)
