"""Usage: summed in memory by minute, tenant, key and model, and settled into the store once a second."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import structlog
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from daemon.store.base import utc_now
from daemon.store.schema import ApiKey, UsageMinute
from daemon.store.session import Store
from daemon.tenants.loss_count import LossCount
from daemon.tenants.principal import Principal
from engine.errors import StoreError

SETTLE_EVERY_S = 1.0
MAX_OPEN_SLOTS = 20_000  # while the store fails
log = structlog.get_logger(__name__)
_Slot = tuple[datetime, str, str, str]  # minute, tenant, key, model


@dataclass(slots=True)
class UsageSum:
    """Mutable. Owner: UsageLedger, until it is handed to the store."""

    requests: int = 0
    errors: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    device_s: float = 0.0

    def add(self, other: UsageSum) -> None:
        self.requests += other.requests
        self.errors += other.errors
        self.prompt_tokens += other.prompt_tokens
        self.cached_tokens += other.cached_tokens
        self.output_tokens += other.output_tokens
        self.device_s += other.device_s


@dataclass(frozen=True, slots=True)
class UsageRow:
    minute_at: datetime
    tenant_id: str
    key_id: str
    model: str
    requests: int
    errors: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    device_s: float


class UsageLedger:
    """Owner of what is not settled yet. Used on the event loop only."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._count: LossCount | None = None
        self._open: dict[_Slot, UsageSum] = {}
        self._used_at: dict[str, datetime] = {}
        self._task: asyncio.Task[None] | None = None
        self.problem: str | None = None  # why nothing could be settled the last time
        self.lost_requests = 0  # whose usage is recorded nowhere, with those of a process that was killed before
        self.on_lost: Callable[[int], object] = lambda requests: None  # requests whose usage is not recorded

    def add(self, principal: Principal, model: str, used: UsageSum) -> None:
        now = utc_now()
        slot = (now.replace(second=0, microsecond=0), principal.tenant_id, principal.key_id, model)
        self._open.setdefault(slot, UsageSum()).add(used)
        self._used_at[principal.key_id] = now
        if self._count is not None:
            for _ in range(used.requests):
                self._count.add()

    def seen(self, key_id: str) -> None:
        """A key was shown, whatever for."""
        self._used_at[key_id] = utc_now()

    def count_losses(self, path: Path) -> None:
        """Tell on_lost of what a process that was killed had not settled, and keep count for the next. Before start."""
        self._count = LossCount(path)
        if self._count.lost:
            self.lost_requests = self._count.lost
            log.error("usage_lost", requests=self._count.lost, cause="the daemon ended without a stop")
            self.on_lost(self._count.lost)

    def start(self) -> None:
        self._task = asyncio.create_task(self._settle_regularly(), name="usage-settler")

    async def stop(self) -> None:
        """Settle what is left; a clean stop loses nothing. Raises: StoreError"""
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        await self.settle()
        if self._count is not None:
            self._count.close()
            self._count = None

    async def settle(self) -> None:
        """Write what was summed since the last time; on failure it is kept for the next. Raises: StoreError"""
        if not self._open and not self._used_at:
            return
        sums, used_at = self._open, self._used_at
        self._open, self._used_at = {}, {}
        # Shielded, so that a cancelled settler cannot leave it unknown whether these sums were written.
        writing = asyncio.ensure_future(self._store.write(lambda session: _write(session, sums, used_at)))
        try:
            await asyncio.shield(writing)
            self._settled(sums)
        except asyncio.CancelledError:
            await asyncio.gather(writing, return_exceptions=True)
            if writing.exception() is not None:
                self._take_back(sums, used_at)
            else:
                self._settled(sums)
            raise
        except StoreError:
            self._take_back(sums, used_at)
            raise

    def _take_back(self, sums: dict[_Slot, UsageSum], used_at: dict[str, datetime]) -> None:
        for slot, kept in sums.items():
            self._open.setdefault(slot, UsageSum()).add(kept)
        self._used_at = used_at | self._used_at
        surplus = sorted(self._open)[: max(0, len(self._open) - MAX_OPEN_SLOTS)]
        lost = sum(self._open.pop(slot).requests for slot in surplus)
        if lost:
            self.lost_requests += lost
            log.error("usage_lost", requests=lost, cause="the database could not be written for too long")
            self.on_lost(lost)
            if self._count is not None:
                self._count.settle(lost)

    def _settled(self, sums: dict[_Slot, UsageSum]) -> None:
        if self._count is not None:
            self._count.settle(sum(used.requests for used in sums.values()))

    async def _settle_regularly(self) -> None:
        failing = False
        while True:
            await asyncio.sleep(SETTLE_EVERY_S)
            try:
                await self.settle()
                failing, self.problem = False, None
            except StoreError as error:
                self.problem = error.message
                if not failing:
                    log.warning("usage_not_settled", error=str(error), slots=len(self._open))
                failing = True


def read_usage(session: Session, since: datetime, until: datetime) -> list[UsageRow]:
    """Minutes in [since, until), oldest first."""
    query = (
        select(UsageMinute)
        .where(UsageMinute.minute_at >= since, UsageMinute.minute_at < until)
        .order_by(UsageMinute.minute_at, UsageMinute.tenant_id, UsageMinute.key_id, UsageMinute.model)
    )
    return [
        UsageRow(
            minute_at=row.minute_at,
            tenant_id=row.tenant_id,
            key_id=row.key_id,
            model=row.model,
            requests=row.requests,
            errors=row.errors,
            prompt_tokens=row.prompt_tokens,
            cached_tokens=row.cached_tokens,
            output_tokens=row.output_tokens,
            device_s=row.device_s,
        )
        for row in session.scalars(query)
    ]


def tokens_since(session: Session, since: datetime) -> dict[str, int]:
    """Prompt and output tokens of each tenant from a minute on."""
    total = func.sum(UsageMinute.prompt_tokens + UsageMinute.output_tokens)
    query = select(UsageMinute.tenant_id, total).where(UsageMinute.minute_at >= since).group_by(UsageMinute.tenant_id)
    return {tenant_id: int(tokens) for tenant_id, tokens in session.execute(query)}


def _write(session: Session, sums: dict[_Slot, UsageSum], used_at: dict[str, datetime]) -> None:
    for slot, used in sums.items():
        row = session.get(UsageMinute, slot)
        if row is None:
            minute_at, tenant_id, key_id, model = slot
            row = UsageMinute(
                minute_at=minute_at, tenant_id=tenant_id, key_id=key_id, model=model,
                requests=0, errors=0, prompt_tokens=0, cached_tokens=0, output_tokens=0, device_s=0.0,
            )  # fmt: skip
            session.add(row)
        row.requests += used.requests
        row.errors += used.errors
        row.prompt_tokens += used.prompt_tokens
        row.cached_tokens += used.cached_tokens
        row.output_tokens += used.output_tokens
        row.device_s += used.device_s
    for key_id, at in used_at.items():
        session.execute(update(ApiKey).where(ApiKey.id == key_id).values(last_used_at=at))
