"""PUT plans/{name}/adaptive, POST plans/rollback: whether load moves a plan's knobs; back to the plan before."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter
from pydantic import Field

from daemon.api.admin.access import Operator, Services
from daemon.api.admin.answers import Body
from daemon.api.admin.plans import PlanAnswer, StrategyAnswer, plan_item, strategy_answer
from daemon.strategy.adapting import adapt
from daemon.strategy.rollback import plan_before

router = APIRouter(tags=["plans"])

Streams = Annotated[int, Field(ge=1, le=1 << 16)]


class AdaptiveBody(Body):
    """least_streams, most_streams None: as far as the latency and the throughput strategy go."""

    on: bool
    least_streams: Streams | None = None
    most_streams: Streams | None = None
    dwell_s: Annotated[float, Field(ge=1, le=3600)] | None = None


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


@router.post("/plans/rollback")
async def post_rollback(services: Services, caller: Operator, body: RollbackBody | None = None) -> StrategyAnswer:
    """Put the plan in force that was so before the present one."""
    asked = body or RollbackBody()
    now = (await asyncio.to_thread(services.controller.view)).plan
    name = plan_before(services.events.recent(limit=1000), now)
    view = await services.controller.activate(name, None, caller.name, asked.reason or f"rolled back from {now}")
    await services.tenants.record(caller.actor, "plan.rollback", f"plan:{name}", asked.model_dump())
    return strategy_answer(view)
