"""GET usage: what tenants, keys and models used, by the minute or summed."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import AwareDatetime

from daemon.api.admin.access import Services, Viewer
from daemon.api.admin.answers import Answer, Item
from daemon.store.base import utc_now
from daemon.tenants.usage import UsageRow, UsageSum, read_usage
from engine.errors import InvalidParameter

router = APIRouter(tags=["usage"])
LONGEST = timedelta(days=32)
By = Literal["minute", "hour", "day", "none"]


class UsageItem(Item):
    """starts_at: of the minute, hour or day in UTC; with by=none, of the whole time asked for."""

    starts_at: datetime
    tenant_id: str
    key_id: str
    model: str
    requests: int
    errors: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    device_s: float


class UsageAnswer(Answer):
    since: datetime
    until: datetime
    items: list[UsageItem]


@router.get("/usage")
async def get_usage(
    services: Services,
    caller: Viewer,
    since: AwareDatetime | None = None,
    until: AwareDatetime | None = None,
    by: Annotated[By, Query()] = "hour",
) -> UsageAnswer:
    """Without times, the last day. What the last second added may not be settled yet."""
    end = until or utc_now()
    begin = since or end - timedelta(days=1)
    if not timedelta(0) < end - begin <= LONGEST:
        raise InvalidParameter(
            f"The time from {begin} to {end} is not between 0 and {LONGEST.days} days.", param="since"
        )
    rows = await services.store.read(lambda session: read_usage(session, begin, end))
    return UsageAnswer(since=begin, until=end, items=summed(rows, by, begin))


def summed(rows: list[UsageRow], by: By, begin: datetime) -> list[UsageItem]:
    """One item for each slot, tenant, key and model, in that order."""
    sums: dict[tuple[datetime, str, str, str], UsageSum] = {}
    for row in rows:
        slot = (_start(row.minute_at, by, begin), row.tenant_id, row.key_id, row.model)
        sums.setdefault(slot, UsageSum()).add(
            UsageSum(row.requests, row.errors, row.prompt_tokens, row.cached_tokens, row.output_tokens, row.device_s)
        )
    return [
        UsageItem(
            starts_at=starts_at,
            tenant_id=tenant_id,
            key_id=key_id,
            model=model,
            requests=used.requests,
            errors=used.errors,
            prompt_tokens=used.prompt_tokens,
            cached_tokens=used.cached_tokens,
            output_tokens=used.output_tokens,
            device_s=used.device_s,
        )
        for (starts_at, tenant_id, key_id, model), used in sorted(sums.items())
    ]


def _start(minute_at: datetime, by: By, begin: datetime) -> datetime:
    match by:
        case "minute":
            return minute_at
        case "hour":
            return minute_at.replace(minute=0)
        case "day":
            return minute_at.replace(hour=0, minute=0)
        case "none":
            return begin
