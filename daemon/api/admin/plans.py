"""GET plans, POST plans/{name}/activate, DELETE: the named outcomes of planning, and which is in force."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import Field

from daemon.api.admin.access import Admin, Operator, Services, Viewer
from daemon.api.admin.answers import Answer, Body, Consequences, Item
from daemon.api.admin.before import in_force, plan_facts
from daemon.api.admin.services import AdminServices
from daemon.planning.answer_json import profile_item
from daemon.strategy.plans import SavedPlan
from daemon.strategy.view import StrategyView

router = APIRouter(tags=["plans"])
LONGEST_S = 366 * 86_400


class MemoryPart(Item):
    name: str
    size_bytes: int
    detail: str


class PlannedModelItem(Item):
    """What the plan chose for one model; each reason is a sentence."""

    model: str
    device: str
    memory_bytes: int
    memory_parts: list[MemoryPart]
    context_tokens: int
    kv_tokens: int
    decode_tok_s: float
    batch_tok_s: float
    prefill_tok_s: float
    first_token_s: float
    threads: int
    knobs: dict[str, Any]
    bounds: dict[str, Any] | None  # how far load may move the knobs
    on_demand: dict[str, Any] | None  # keep_alive_s, pinned; None: always loaded
    reasons: list[str]


class PlanItem(Item):
    """origin: auto, operator."""

    name: str
    strategy: str
    origin: str
    active: bool
    models: list[PlannedModelItem]
    notes: str
    created_at: datetime
    updated_at: datetime


class PlansAnswer(Answer):
    items: list[PlanItem]


class PlanAnswer(Answer):
    item: PlanItem


class ActivateBody(Body):
    """for_s None: until released, or for good where there are no schedule rules."""

    for_s: Annotated[float, Field(gt=0, le=LONGEST_S)] | None = None
    reason: str = ""


class StrategyAnswer(Answer):
    """What is wanted now, and whether the workers are so."""

    plan: str | None
    since_at: datetime | None
    until_at: datetime | None
    reason: str
    rule: str | None
    default: str | None
    timezone: str
    next_plan: str | None
    converged: bool
    problem: str | None


class DeletedPlanAnswer(Answer):
    deleted: str


@router.get("/plans")
async def get_plans(services: Services, caller: Viewer) -> PlansAnswer:
    def read() -> list[PlanItem]:
        active = services.controller.view().plan
        return [plan_item(plan, active) for plan in services.plans.all()]

    return PlansAnswer(items=await asyncio.to_thread(read))


@router.get("/plans/{name}")
async def get_plan(name: str, services: Services, caller: Viewer) -> PlanAnswer:
    def read() -> PlanItem:
        return plan_item(services.plans.get(name), services.controller.view().plan)

    return PlanAnswer(item=await asyncio.to_thread(read))


@router.post("/plans/{name}/activate")
async def post_activate(
    name: str, services: Services, caller: Operator, body: ActivateBody | None = None, dry_run: bool = False
) -> StrategyAnswer | Consequences:
    """Run this plan now; the answer says what is in force, the event log how the workers follow."""
    if dry_run:
        return await asyncio.to_thread(_activation, services, name)
    asked = body or ActivateBody()
    before = await in_force(services)
    view = await services.controller.activate(name, asked.for_s, caller.name, asked.reason)
    await services.tenants.record(caller.actor, "plan.activate", f"plan:{name}", asked.model_dump(), before)
    return strategy_answer(view)


@router.delete("/plans/{name}")
async def delete_plan(name: str, services: Services, caller: Admin) -> DeletedPlanAnswer:
    """Refused while a rule, an override or the default names it."""
    before = await plan_facts(services, name)
    await asyncio.to_thread(services.plans.delete, name)
    await services.tenants.record(caller.actor, "plan.delete", f"plan:{name}", before=before)
    return DeletedPlanAnswer(deleted=name)


def _activation(services: AdminServices, name: str) -> Consequences:
    """Blocks. Raises: NotFound"""
    plan = services.plans.get(name)
    wanted = {profile.model for profile in plan.profiles}
    views = services.supervisor.views()
    leaving = [view for view in views if view.model not in wanted]
    told = [f"plan {name} serves {', '.join(sorted(wanted)) or 'nothing'}; now: {services.controller.view().plan}"]
    told += [f"worker {view.name} ends, with {view.inflight} requests in flight" for view in leaving]
    return Consequences(consequences=told, in_flight=sum(view.inflight for view in leaving))


def strategy_answer(view: StrategyView) -> StrategyAnswer:
    return StrategyAnswer(
        as_of=view.as_of,
        plan=view.plan,
        since_at=view.since_at,
        until_at=view.until_at,
        reason=view.reason,
        rule=view.rule,
        default=view.default,
        timezone=view.timezone,
        next_plan=view.next_plan,
        converged=view.converged,
        problem=view.problem,
    )


def plan_item(plan: SavedPlan, active: str | None) -> PlanItem:
    return PlanItem(
        name=plan.name,
        strategy=plan.strategy.value,
        origin=plan.origin,
        active=plan.name == active,
        models=[PlannedModelItem.model_validate(profile_item(profile)) for profile in plan.profiles],
        notes=plan.notes,
        created_at=plan.created_at,
        updated_at=plan.updated_at,
    )
