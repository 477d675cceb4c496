"""GET usage and usage/export: what tenants, keys and models used, by the minute or summed."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Response
from pydantic import AwareDatetime

from daemon.api.admin.access import Services, Viewer
from daemon.api.admin.answers import Answer, Item
from daemon.api.admin.services import AdminServices
from daemon.store.base import utc_now
from daemon.tenants.usage import UsageRow, UsageSum, read_usage
from engine.errors import InvalidParameter

router = APIRouter(tags=["usage"])
LONGEST = timedelta(days=32)
FIRST_YEAR, LAST_YEAR = 2000, 2999  # nearer the ends of the calendar no time can be counted on from
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


@dataclass(frozen=True, slots=True)
class Asked:
    """Of which time, summed how, and of whom; None: of everyone."""

    since: datetime
    until: datetime
    by: By
    tenant: str | None
    key: str | None
    model: str | None

    def takes(self, row: UsageRow, tenant_id: str | None) -> bool:
        return (
            (tenant_id is None or row.tenant_id == tenant_id)
            and (self.key is None or row.key_id == self.key)
            and (self.model is None or row.model == self.model)
        )


def asked(
    since: AwareDatetime | None = None,
    until: AwareDatetime | None = None,
    by: Annotated[By, Query()] = "hour",
    tenant: str | None = None,
    key: str | None = None,
    model: str | None = None,
) -> Asked:
    """Without times, the last day. Raises: InvalidParameter"""
    end = until or utc_now()
    for param, moment in (("since", since or end), ("until", end)):
        if not FIRST_YEAR <= moment.year <= LAST_YEAR:
            raise InvalidParameter(f"{moment} is not in the years {FIRST_YEAR} to {LAST_YEAR}.", param=param)
    begin = since or end - timedelta(days=1)
    if not timedelta(0) < end - begin <= LONGEST:
        raise InvalidParameter(
            f"The time from {begin} to {end} is not between 0 and {LONGEST.days} days.", param="since"
        )
    return Asked(begin, end, by, tenant, key, model)


Question = Annotated[Asked, Depends(asked)]


@router.get("/usage")
async def get_usage(services: Services, caller: Viewer, question: Question) -> UsageAnswer:
    """What the last second added may not be settled yet."""
    return UsageAnswer(since=question.since, until=question.until, items=await _items(services, question))


@router.get("/usage/export", response_model=UsageAnswer, responses={200: {"content": {"text/csv": {}}}})
async def get_export(
    services: Services,
    caller: Viewer,
    question: Question,
    kind: Annotated[Literal["csv", "json"], Query(alias="format")] = "csv",
) -> UsageAnswer | Response:
    """The same as a file, with the tenants' names."""
    items = await _items(services, question)
    if kind == "json":
        return UsageAnswer(since=question.since, until=question.until, items=items)
    names = {tenant.id: tenant.name for tenant in await services.tenants.tenants()}
    name = f"usage-{question.since:%Y%m%dT%H%M}-{question.until:%Y%m%dT%H%M}.csv"
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return Response(as_csv(items, names), media_type="text/csv; charset=utf-8", headers=headers)


async def _items(services: AdminServices, question: Asked) -> list[UsageItem]:
    tenant_id = (await services.tenants.tenant(question.tenant)).id if question.tenant is not None else None
    rows = await services.store.read(lambda session: read_usage(session, question.since, question.until))
    return summed([row for row in rows if question.takes(row, tenant_id)], question.by, question.since)


def as_csv(items: list[UsageItem], names: dict[str, str]) -> str:
    """One line an item, after a line of column names."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    columns = list(UsageItem.model_fields)
    writer.writerow(["tenant", *columns])
    for item in items:
        values = item.model_dump(mode="json")
        row = [names.get(item.tenant_id, item.tenant_id), *(values[column] for column in columns)]
        writer.writerow([_plain(cell) for cell in row])
    return out.getvalue()


def _plain(cell: object) -> object:
    """A cell that a spreadsheet takes for text: one that begins like a formula would be run."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t", "\r")) else cell


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
