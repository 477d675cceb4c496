"""POST plans/preview, PUT plans/{name}, GET plans/{name}/diff, models/{name}/quality, POST calibrations: planning."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter
from pydantic import Field

from daemon.api.admin.access import Operator, Services, Viewer
from daemon.api.admin.answers import Answer, Body, Item
from daemon.api.admin.before import plan_facts
from daemon.api.admin.operations import OperationAnswer, operation_item
from daemon.api.admin.plans import PlanAnswer, plan_item
from daemon.models.copying import Cancelled, Report
from daemon.models.record import ImportProgress
from daemon.planning.answer_json import answer_to_json
from daemon.planning.kv_bytes import KvPrecision
from daemon.planning.plan import Request
from daemon.planning.profile import Profile
from daemon.planning.strategy import Strategy
from daemon.strategy.plans import diff
from engine.errors import Conflict, InvalidParameter
from engine.spec.precision import WeightPrecision

router = APIRouter(tags=["plans"])

Count = Annotated[int, Field(ge=1, le=1 << 31)]


class PreviewBody(Body):
    """target: an imported model's name, or an absolute path on the daemon's machine. beside: profiles, as answers
    hold them, that run at the same time."""

    target: str
    strategy: Strategy = Strategy.LATENCY
    context_tokens: Count | None = None
    users: Count | None = None
    weights: WeightPrecision | None = None
    kv_dtype: KvPrecision | None = None
    beside: Annotated[list[dict[str, Any]], Field(max_length=64, default_factory=list)]


class PreviewAnswer(Answer):
    """answer: candidates, the chosen profile, why-nots, budgets; as `bayard plan --json` prints it."""

    answer: dict[str, Any]


class SaveBody(Body):
    """replace_automatic: even in the place of a plan that imports keep up to date, which they then do no more."""

    strategy: Strategy
    models: Annotated[list[str], Field(min_length=1, max_length=64)]
    context_tokens: Count | None = None
    users: Count | None = None
    weights: WeightPrecision | None = None
    kv_dtype: KvPrecision | None = None
    replace_automatic: bool = False


class DifferenceItem(Item):
    model: str
    what: str
    old: str
    new: str


class DiffAnswer(Answer):
    old: str
    new: str
    items: list[DifferenceItem]


class QualityBody(Body):
    """What `bayard quality` measured: second against first, KL in nats a token."""

    model: str
    first: str
    second: str
    text: str
    tokens: Count
    first_perplexity: float
    second_perplexity: float
    perplexity_change: float
    agreement: Annotated[float, Field(ge=0, le=1)]
    mean_kl: float
    largest_kl: float
    first_bytes: int
    second_bytes: int
    notes: list[str] = Field(default_factory=list)


class QualityAnswer(Answer):
    """items: the newest of each pair of forms."""

    items: list[dict[str, Any]]


class CalibrateBody(Body):
    seconds: Annotated[float, Field(ge=1, le=120)] = 15.0
    device: str | None = None


@router.post("/plans/preview")
async def post_preview(body: PreviewBody, services: Services, caller: Operator) -> PreviewAnswer:
    """Plan without loading anything."""
    request = Request(body.strategy, body.context_tokens, body.users, body.kv_dtype, weights=body.weights)
    answer = await asyncio.to_thread(services.desk.answer, body.target, request, None, _profiles(body.beside))
    return PreviewAnswer(answer=answer_to_json(answer))


def _profiles(beside: list[dict[str, Any]]) -> list[Profile]:
    """Raises: InvalidParameter"""
    try:
        return [Profile.from_json(item) for item in beside]
    except msgspec.ValidationError as error:
        raise InvalidParameter(
            f"beside holds what is no profile: {error}.", "Send `chosen` of an earlier answer as it is.", param="beside"
        ) from error


@router.put("/plans/{name}")
async def put_plan(name: str, body: SaveBody, services: Services, caller: Operator) -> PlanAnswer:
    """Plan these models together and save the outcome under a name."""

    def save() -> PlanAnswer:
        saved = services.desk.save(
            name,
            body.strategy,
            body.models,
            body.context_tokens,
            body.users,
            body.weights,
            body.kv_dtype,
            even_automatic=body.replace_automatic,
        )
        return PlanAnswer(item=plan_item(saved, services.controller.view().plan))

    before = await plan_facts(services, name)
    answer = await asyncio.to_thread(save)
    await services.tenants.record(caller.actor, "plan.save", f"plan:{name}", body.model_dump(mode="json"), before)
    await services.controller.reconcile(f"plan {name} saved by {caller.name}")
    return answer


@router.get("/plans/{name}/diff")
async def get_diff(name: str, to: str, services: Services, caller: Viewer) -> DiffAnswer:
    """What going from one plan to another changes."""

    def read() -> DiffAnswer:
        rows = diff(services.plans.get(name), services.plans.get(to))
        items = [DifferenceItem(model=model, what=what, old=old, new=new) for model, what, old, new in rows]
        return DiffAnswer(old=name, new=to, items=items)

    return await asyncio.to_thread(read)


@router.put("/models/{name}/quality")
async def put_quality(name: str, body: QualityBody, services: Services, caller: Operator) -> QualityAnswer:
    """Keep what was measured of two precisions of a model, so that plans show it."""
    found = body.model_dump(mode="json")
    await asyncio.to_thread(services.desk.save_quality, name, found)
    told = {"first": body.first, "second": body.second, "perplexity_change": body.perplexity_change}
    await services.tenants.record(caller.actor, "model.quality", f"model:{name}", told)
    return QualityAnswer(items=await asyncio.to_thread(services.desk.quality, name))


@router.get("/models/{name}/quality")
async def get_quality(name: str, services: Services, caller: Viewer) -> QualityAnswer:
    """What was measured of a model's precisions."""
    return QualityAnswer(items=await asyncio.to_thread(services.desk.quality, name))


@router.post("/calibrations", status_code=202)
async def post_calibration(services: Services, caller: Operator, body: CalibrateBody | None = None) -> OperationAnswer:
    """Measure this machine; refused while requests run, as each would spoil the other."""
    asked = body or CalibrateBody()
    running = sum(view.stats.running for view in services.supervisor.views() if view.stats is not None)
    if running:
        raise Conflict(f"{running} requests are running.", "Calibrate when the box is idle.")

    def work(report: Report, cancelled: Cancelled) -> dict[str, Any]:
        report(ImportProgress("measuring", asked.device or "every device", 0, 0))
        found = services.desk.calibrate(asked.seconds, asked.device, cancelled)
        return {"devices": [rates.to_json() for rates in found]}

    operation = services.operations.start("calibrate", asked.device or "machine", work)
    await services.tenants.record(caller.actor, "machine.calibrate", "machine", asked.model_dump())
    return OperationAnswer(item=operation_item(operation))
