"""Schedule rules, the day as they make it, and the override above them."""

from __future__ import annotations

import asyncio
from datetime import date, datetime
from zoneinfo import ZoneInfo

from fastapi import APIRouter
from pydantic import Field

from daemon.api.admin.access import Operator, Services, Viewer
from daemon.api.admin.answers import Answer, Body, Item
from daemon.api.admin.before import in_force, rule_facts
from daemon.api.admin.plans import StrategyAnswer, strategy_answer
from daemon.store.base import utc_now
from daemon.strategy.schedule import Decision, Rule
from engine.errors import NotFound

router = APIRouter(prefix="/schedule", tags=["schedule"])


class RuleItem(Item):
    name: str
    cron: str
    duration_s: int
    plan: str
    timezone: str
    enabled: bool
    except_dates: list[date]


class RulesAnswer(Answer):
    items: list[RuleItem]


class RuleAnswer(Answer):
    item: RuleItem


class RuleBody(Body):
    """timezone empty: the setting's. except_dates: local dates on which it does not start."""

    name: str
    cron: str
    duration_s: int
    plan: str
    timezone: str = ""
    except_dates: list[date] = Field(default_factory=list)


class RuleChange(Body):
    """None leaves it as it is."""

    enabled: bool | None = None
    cron: str | None = None
    duration_s: int | None = None
    plan: str | None = None
    timezone: str | None = None
    except_dates: list[date] | None = None


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
    rule = await asyncio.to_thread(lambda: services.rules.add(**dict(body)))
    await services.tenants.record(caller.actor, "schedule.add", f"rule:{rule.name}", body.model_dump(mode="json"))
    await services.controller.reconcile(f"rule {rule.name} added by {caller.name}")
    return RuleAnswer(item=_item(rule))


@router.get("/rules/{name}")
async def get_rule(name: str, services: Services, caller: Viewer) -> RuleAnswer:
    for rule in await asyncio.to_thread(services.rules.all):
        if rule.name == name:
            return RuleAnswer(item=_item(rule))
    raise NotFound(f"there is no schedule rule {name[:64]!r}.", "`bayard schedule list` names them.", param="name")


@router.patch("/rules/{name}")
async def patch_rule(name: str, body: RuleChange, services: Services, caller: Operator) -> RuleAnswer:
    """Switch a rule on or off, or give it another start, length, plan or zone."""
    asked, before = {key: value for key, value in body if value is not None}, await rule_facts(services, name)
    rule = await asyncio.to_thread(lambda: services.rules.change(name, **asked))
    facts = body.model_dump(mode="json", exclude_none=True)
    await services.tenants.record(caller.actor, "schedule.change", f"rule:{name}", facts, before)
    await services.controller.reconcile(f"rule {name} changed by {caller.name}")
    return RuleAnswer(item=_item(rule))


@router.delete("/rules/{name}")
async def delete_rule(name: str, services: Services, caller: Operator) -> RemovedAnswer:
    before = await rule_facts(services, name)
    await asyncio.to_thread(services.rules.remove, name)
    await services.tenants.record(caller.actor, "schedule.remove", f"rule:{name}", before=before)
    await services.controller.reconcile(f"rule {name} removed by {caller.name}")
    return RemovedAnswer(deleted=name)


@router.post("/release")
async def post_release(services: Services, caller: Operator) -> StrategyAnswer:
    """End an operator's override and follow the rules again."""
    before = await in_force(services)
    view = await services.controller.release(caller.name)
    await services.tenants.record(caller.actor, "schedule.release", "schedule", {"plan": view.plan}, before)
    return strategy_answer(view)


@router.get("/timeline")
async def get_timeline(services: Services, caller: Viewer, date: date | None = None) -> TimelineAnswer:
    """The plans of one local day; without a date, of today."""
    zone = services.rules.timezone
    day = date or utc_now().astimezone(ZoneInfo(zone)).date()
    segments = await asyncio.to_thread(services.controller.timeline, day)
    items = [
        SpanItem(plan=one.plan, starts_at=one.begins_at, ends_at=one.ends_at, reason=one.reason, rule=one.rule)
        for one in segments
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
        except_dates=list(rule.except_dates),
    )


def span_item(begins_at: datetime, ends_at: datetime, decision: Decision) -> SpanItem:
    return SpanItem(
        plan=decision.plan, starts_at=begins_at, ends_at=ends_at, reason=decision.reason, rule=decision.rule
    )
