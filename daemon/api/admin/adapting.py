"""PUT plans/{name}/adaptive and /on-demand, POST plans/rollback: what follows the load, and the way back."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter
from pydantic import Field

from daemon.api.admin.access import Operator, Services
from daemon.api.admin.answers import Body
from daemon.api.admin.plans import PlanAnswer, StrategyAnswer, plan_item, strategy_answer
from daemon.strategy.adapting import adapt
from daemon.strategy.demanding import load_always, load_on_demand
from daemon.strategy.rollback import plan_before

router = APIRouter(tags=["plans"])

Streams = Annotated[int, Field(ge=1, le=1 << 16)]


class AdaptiveBody(Body):
    """least_streams, most_streams None: as far as the latency and the throughput strategy go."""

    on: bool
    least_streams: Streams | None = None
    most_streams: Streams | None = None
    dwell_s: Annotated[float, Field(ge=1, le=3600)] | None = None


class OnDemandBody(Body):
    """on False: the model is always loaded. pinned: once loaded it stays."""

    model: str
    on: bool = True
    keep_alive_s: Annotated[float, Field(gt=0)] = 600.0
    pinned: bool = False


class RollbackBody(Body):
    reason: str = ""


@router.put("/plans/{name}/adaptive")
async def put_adaptive(name: str, body: AdaptiveBody, services: Services, caller: Operator) -> PlanAnswer:
    """Let measured load move the knobs of the plan's workers within bounds, or leave them where the plan says."""

    def save() -> PlanAnswer:
        saved = adapt(
            services.desk,
            services.plans,
            name,
            on=body.on,
            least_streams=body.least_streams,
            most_streams=body.most_streams,
            dwell_s=body.dwell_s,
        )
        return PlanAnswer(item=plan_item(saved, services.controller.view().plan))

    answer = await asyncio.to_thread(save)
    await services.tenants.record(caller.actor, "plan.adapt", f"plan:{name}", body.model_dump())
    await services.controller.reconcile(f"plan {name} was made {'adaptive' if body.on else 'fixed'} by {caller.name}")
    return answer


@router.put("/plans/{name}/on-demand")
async def put_on_demand(name: str, body: OnDemandBody, services: Services, caller: Operator) -> PlanAnswer:
    """Load a model of the plan when somebody asks for it, and put it away when nobody does; or always."""

    def save() -> PlanAnswer:
        if body.on:
            saved = load_on_demand(
                services.desk, services.plans, name, body.model, body.keep_alive_s, pinned=body.pinned
            )
        else:
            saved = load_always(services.desk, services.plans, name, body.model)
        return PlanAnswer(item=plan_item(saved, services.controller.view().plan))

    answer = await asyncio.to_thread(save)
    await services.tenants.record(caller.actor, "plan.on_demand", f"plan:{name}", body.model_dump())
    await services.controller.reconcile(f"plan {name} was changed by {caller.name}")
    return answer


@router.post("/plans/rollback")
async def post_rollback(services: Services, caller: Operator, body: RollbackBody | None = None) -> StrategyAnswer:
    """Put the plan in force that was so before the present one."""
    asked = body or RollbackBody()
    now = (await asyncio.to_thread(services.controller.view)).plan
    name = plan_before(services.events.recent(limit=1000), now)
    view = await services.controller.activate(name, None, caller.name, asked.reason or f"rolled back from {now}")
    await services.tenants.record(caller.actor, "plan.rollback", f"plan:{name}", asked.model_dump(), {"plan": now})
    return strategy_answer(view)
