"""Schedule rules, the day as they make it, and the override above them."""

from __future__ import annotations

import asyncio
from datetime import date, datetime
from zoneinfo import ZoneInfo

from fastapi import APIRouter

from daemon.api.admin.access import Operator, Services, Viewer
from daemon.api.admin.answers import Answer, Body, Item
from daemon.api.admin.plans import StrategyAnswer, strategy_answer
from daemon.store.base import utc_now
from daemon.strategy.schedule import Rule

router = APIRouter(prefix="/schedule", tags=["schedule"])


class RuleItem(Item):
    name: str
    cron: str
    duration_s: int
    plan: str
    timezone: str
    enabled: bool


class RulesAnswer(Answer):
    items: list[RuleItem]


class RuleAnswer(Answer):
    item: RuleItem


class RuleBody(Body):
    """timezone empty: the setting's."""

    name: str
    cron: str
    duration_s: int
    plan: str
    timezone: str = ""


class RuleChange(Body):
    enabled: bool


class RemovedAnswer(Answer):
    deleted: str


class SpanItem(Item):
    """A stretch of the day under one plan; plan None: nothing is to run."""

    plan: str | None
    starts_at: datetime
    ends_at: datetime
    reason: str
    rule: str | None


class TimelineAnswer(Answer):
    date: date
    timezone: str
    items: list[SpanItem]


@router.get("")
async def get_schedule(services: Services, caller: Viewer) -> StrategyAnswer:
    """What is in force now, and why."""
    return strategy_answer(await asyncio.to_thread(services.controller.view))


@router.get("/rules")
async def get_rules(services: Services, caller: Viewer) -> RulesAnswer:
    return RulesAnswer(items=[_item(rule) for rule in await asyncio.to_thread(services.rules.all)])


@router.post("/rules", status_code=201)
async def post_rule(body: RuleBody, services: Services, caller: Operator) -> RuleAnswer:
    rule = await asyncio.to_thread(services.rules.add, body.name, body.cron, body.duration_s, body.plan, body.timezone)
    await services.tenants.record(caller.actor, "schedule.add", f"rule:{rule.name}", body.model_dump())
    await services.controller.reconcile(f"rule {rule.name} added by {caller.name}")
    return RuleAnswer(item=_item(rule))


@router.patch("/rules/{name}")
async def patch_rule(name: str, body: RuleChange, services: Services, caller: Operator) -> RuleAnswer:
    """Switch a rule on or off."""
    rule = await asyncio.to_thread(services.rules.set_enabled, name, body.enabled)
    await services.tenants.record(caller.actor, "schedule.change", f"rule:{name}", body.model_dump())
    await services.controller.reconcile(f"rule {name} changed by {caller.name}")
    return RuleAnswer(item=_item(rule))


@router.delete("/rules/{name}")
async def delete_rule(name: str, services: Services, caller: Operator) -> RemovedAnswer:
    await asyncio.to_thread(services.rules.remove, name)
    await services.tenants.record(caller.actor, "schedule.remove", f"rule:{name}")
    await services.controller.reconcile(f"rule {name} removed by {caller.name}")
    return RemovedAnswer(deleted=name)


@router.post("/release")
async def post_release(services: Services, caller: Operator) -> StrategyAnswer:
    """End an operator's override and follow the rules again."""
    view = await services.controller.release(caller.name)
    await services.tenants.record(caller.actor, "schedule.release", "schedule")
    return strategy_answer(view)


@router.get("/timeline")
async def get_timeline(services: Services, caller: Viewer, date: date | None = None) -> TimelineAnswer:
    """The plans of one local day; without a date, of today."""
    zone = services.rules.timezone
    day = date or utc_now().astimezone(ZoneInfo(zone)).date()
    segments = await asyncio.to_thread(services.controller.timeline, day)
    items = [
        SpanItem(
            plan=segment.plan,
            starts_at=segment.begins_at,
            ends_at=segment.ends_at,
            reason=segment.reason,
            rule=segment.rule,
        )
        for segment in segments
    ]
    return TimelineAnswer(date=day, timezone=zone, items=items)


def _item(rule: Rule) -> RuleItem:
    return RuleItem(
        name=rule.name,
        cron=rule.cron,
        duration_s=rule.duration_s,
        plan=rule.plan,
        timezone=rule.timezone,
        enabled=rule.enabled,
    )
