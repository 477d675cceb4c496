"""Above the rules: an operator's override, the schedule held still, and what a rule would change before it is made."""

from __future__ import annotations

import asyncio
from datetime import date, datetime
from typing import Annotated
from zoneinfo import ZoneInfo

from fastapi import APIRouter
from pydantic import Field

from daemon.api.admin.access import Operator, Services, Viewer
from daemon.api.admin.answers import Answer, Body, Consequences, Item
from daemon.api.admin.before import in_force
from daemon.api.admin.plans import LONGEST_S, StrategyAnswer, strategy_answer
from daemon.api.admin.schedule import RuleBody, SpanItem, span_item
from daemon.api.admin.services import AdminServices
from daemon.store.base import utc_now
from daemon.strategy.schedule import Override, day_of
from engine.errors import Conflict, NotFound

router = APIRouter(prefix="/schedule", tags=["schedule"])


class OverrideItem(Item):
    """ends_at None: until it is released. There is one at most; its id is current."""

    id: str = "current"
    plan: str
    starts_at: datetime
    ends_at: datetime | None
    reason: str
    created_by: str


class OverridesAnswer(Answer):
    items: list[OverrideItem]


class OverrideAnswer(Answer):
    item: OverrideItem


class OverrideBody(Body):
    """for_s None: until it is released."""

    plan: str
    for_s: Annotated[float, Field(gt=0, le=LONGEST_S)] | None = None
    reason: str = ""


class HoldBody(Body):
    reason: str = ""
    for_s: Annotated[float, Field(gt=0, le=LONGEST_S)] | None = None


class PreviewBody(Body):
    """rule: one to be added, or put in the place of the one of its name. without: a rule to leave out."""

    rule: RuleBody | None = None
    without: str | None = None
    day: date | None = None


class PreviewAnswer(Answer):
    """before and after: the day as it is, and as it would be. problem: why the rule would be refused."""

    day: date
    timezone: str
    before: list[SpanItem]
    after: list[SpanItem]
    problem: str | None


@router.get("/overrides")
async def get_overrides(services: Services, caller: Viewer) -> OverridesAnswer:
    found = await asyncio.to_thread(services.rules.override)
    return OverridesAnswer(items=[] if found is None else [_item(found)])


@router.get("/overrides/{override_id}")
async def get_override(override_id: str, services: Services, caller: Viewer) -> OverrideAnswer:
    found = await asyncio.to_thread(services.rules.override)
    if found is None or override_id != "current":
        raise NotFound(f"there is no override {override_id!r}.", "There is one at most, named current.")
    return OverrideAnswer(item=_item(found))


@router.post("/overrides", status_code=201)
async def post_override(
    body: OverrideBody, services: Services, caller: Operator, dry_run: bool = False
) -> OverrideAnswer | Consequences:
    """Put a plan above the rules, for a time or until released; an earlier override ends."""
    if dry_run:
        view = await asyncio.to_thread(services.controller.view)
        plan = await asyncio.to_thread(services.plans.get, body.plan)
        until = "until it is released" if body.for_s is None else f"for {body.for_s:g} s"
        return Consequences(consequences=[f"plan {view.plan} -> {plan.name}, {until}, whatever the rules say"])
    before = await in_force(services)
    found = await asyncio.to_thread(services.rules.set_override, body.plan, body.for_s, body.reason, caller.name)
    await services.tenants.record(caller.actor, "schedule.override", f"plan:{body.plan}", body.model_dump(), before)
    await services.controller.reconcile(f"override by {caller.name}")
    return OverrideAnswer(item=_item(found))


@router.delete("/overrides/{override_id}")
async def delete_override(override_id: str, services: Services, caller: Operator) -> StrategyAnswer:
    """As release."""
    if override_id != "current":
        raise NotFound(f"there is no override {override_id!r}.", "There is one at most, named current.")
    before = await in_force(services)
    view = await services.controller.release(caller.name)
    await services.tenants.record(caller.actor, "schedule.release", "schedule", {"plan": view.plan}, before)
    return strategy_answer(view)


@router.post("/hold")
async def post_hold(
    services: Services, caller: Operator, body: HoldBody | None = None, dry_run: bool = False
) -> StrategyAnswer | Consequences:
    """Keep the plan that is in force now, whatever the rules say, until released."""
    asked = body or HoldBody()
    view = await asyncio.to_thread(services.controller.view)
    if view.plan is None:
        raise Conflict("no plan is in force; there is nothing to hold.", "`bayard plan list` shows the plans.")
    if dry_run:
        coming = (
            "no change is near"
            if view.until_at is None or view.next_plan == view.plan
            else f"the change to {view.next_plan} at {view.until_at} does not come"
        )
        return Consequences(consequences=[f"plan {view.plan} stays", coming])
    before = await in_force(services)
    reason = f"held{': ' if asked.reason else ''}{asked.reason}"
    await asyncio.to_thread(services.rules.set_override, view.plan, asked.for_s, reason, caller.name)
    await services.tenants.record(caller.actor, "schedule.hold", f"plan:{view.plan}", asked.model_dump(), before)
    await services.controller.reconcile(f"held by {caller.name}")
    return strategy_answer(await asyncio.to_thread(services.controller.view))


@router.post("/preview")
async def post_preview(body: PreviewBody, services: Services, caller: Operator) -> PreviewAnswer:
    """What a rule would make of a day; nothing is changed."""
    return await asyncio.to_thread(_preview, services, body)


def _preview(services: AdminServices, body: PreviewBody) -> PreviewAnswer:
    """Blocks. Raises: InvalidParameter, NotFound for a rule that could not be at all"""
    zone = ZoneInfo(services.rules.timezone)
    day = body.day or utc_now().astimezone(zone).date()
    rules, default, override = list(services.rules.all()), services.plans.default(), services.rules.override()
    after, problem = [rule for rule in rules if rule.name != body.without], None
    if body.rule is not None:
        services.plans.get(body.rule.plan)
        others = [rule for rule in after if rule.name != body.rule.name]
        candidate, problem = services.rules.candidate(
            body.rule.name,
            body.rule.cron,
            body.rule.duration_s,
            body.rule.plan,
            body.rule.timezone,
            others,
            body.rule.except_dates,
        )
        after = [*others, candidate]
    spans = [
        [span_item(*segment) for segment in day_of(which, day, zone, default, override)] for which in (rules, after)
    ]
    return PreviewAnswer(day=day, timezone=services.rules.timezone, before=spans[0], after=spans[1], problem=problem)


def _item(override: Override) -> OverrideItem:
    return OverrideItem(
        plan=override.plan,
        starts_at=override.starts_at,
        ends_at=override.ends_at,
        reason=override.reason,
        created_by=override.created_by,
    )
