"""GET workers[/{id}] and POST workers/{id}/restart: wanted and actual, and why one is down."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any

import msgspec
from fastapi import APIRouter

from daemon.api.admin.access import Operator, Services, Viewer
from daemon.api.admin.answers import Answer, Item
from daemon.api.admin.services import AdminServices
from daemon.strategy.plans import SavedPlan
from daemon.workers.states import WorkerState
from daemon.workers.view import WorkerView

router = APIRouter(tags=["workers"])
_GOING = frozenset({WorkerState.DRAINING, WorkerState.STOPPING, WorkerState.STOPPED})


class WorkerItem(Item):
    """wanted: it is to run. memory_planned_bytes: what the active plan predicts for its model."""

    id: str
    model: str
    wanted: bool
    state: str
    since: datetime
    reason: str
    fix: str
    pid: int | None
    device: str | None
    requests_running: int | None
    requests_waiting: int | None
    step_age_s: float | None
    restarts: int
    restarts_24h: int
    retry_in_s: float | None
    memory_bytes: int | None
    memory_planned_bytes: int | None
    kv_pages_total: int | None
    kv_pages_active: int | None
    kv_pages_cached: int | None
    page_tokens: int | None
    max_context_tokens: int | None
    last_exit: str | None
    log_tail: list[str]
    log_path: str
    load_stage: str | None
    load_done_bytes: int | None
    load_total_bytes: int | None
    load_s: float | None
    kernels: dict[str, str]
    notes: list[str]
    knobs: dict[str, Any]


class WorkersAnswer(Answer):
    items: list[WorkerItem]


class WorkerAnswer(Answer):
    item: WorkerItem


@router.get("/workers")
async def get_workers(services: Services, caller: Viewer) -> WorkersAnswer:
    plan = await asyncio.to_thread(active_plan, services)
    return WorkersAnswer(items=[worker_item(view, plan) for view in services.supervisor.views()])


@router.get("/workers/{worker_id:path}")
async def get_worker(worker_id: str, services: Services, caller: Viewer) -> WorkerAnswer:
    plan = await asyncio.to_thread(active_plan, services)
    return WorkerAnswer(item=worker_item(services.supervisor.view(worker_id), plan))


@router.post("/workers/{worker_id:path}/restart")
async def post_restart(worker_id: str, services: Services, caller: Operator) -> WorkerAnswer:
    """Drain and start again; also wakes a worker that was given up."""
    before = services.supervisor.view(worker_id)
    await services.supervisor.restart(worker_id, reason=f"restart asked by {caller.name}")
    await services.tenants.record(
        caller.actor, "worker.restart", f"worker:{worker_id}", {"state_before": before.state.value}
    )
    return WorkerAnswer(item=worker_item(services.supervisor.view(worker_id), None))


def active_plan(services: AdminServices) -> SavedPlan | None:
    """Blocks: reads the store."""
    name = services.controller.view().plan
    return None if name is None else services.plans.get(name)


def worker_item(view: WorkerView, plan: SavedPlan | None) -> WorkerItem:
    stats, ready, progress = view.stats, view.ready, view.progress
    profile = plan.profile_of(view.model) if plan else None
    device = ready.device if ready else view.config.device
    memory = None if stats is None else (stats.device_bytes or stats.rss_bytes or None)
    return WorkerItem(
        id=view.name,
        model=view.model,
        wanted=view.state not in _GOING,
        state=view.state.value,
        since=view.since_at,
        reason=view.reason,
        fix=_fix(view),
        pid=view.pid,
        device=device,
        requests_running=stats.running if stats else None,
        requests_waiting=stats.waiting if stats else None,
        step_age_s=view.step_age_s,
        restarts=view.restarts,
        restarts_24h=view.restarts_24h,
        retry_in_s=view.retry_in_s,
        memory_bytes=memory,
        memory_planned_bytes=profile.memory.total_bytes if profile else None,
        kv_pages_total=stats.kv_pages_total if stats else None,
        kv_pages_active=stats.kv_pages_active if stats else None,
        kv_pages_cached=stats.kv_pages_cached if stats else None,
        page_tokens=ready.page_tokens if ready else None,
        max_context_tokens=ready.max_context_tokens if ready else None,
        last_exit=str(view.last_exit) if view.last_exit else None,
        log_tail=list(view.last_log_lines),
        log_path=str(view.log_path),
        load_stage=progress.stage if progress else None,
        load_done_bytes=progress.done_bytes if progress else None,
        load_total_bytes=progress.total_bytes if progress else None,
        load_s=ready.load_s if ready else None,
        kernels=dict(ready.kernels) if ready else {},
        notes=list(ready.notes) if ready else [],
        knobs=msgspec.to_builtins(stats.knobs if stats else view.config.knobs),
    )


def _fix(view: WorkerView) -> str:
    match view.state:
        case WorkerState.LATCHED:
            return f"read {view.log_path}, mend what it says, then restart worker {view.name}"
        case WorkerState.BACKOFF:
            return "it starts again by itself"
        case _:
            return ""
