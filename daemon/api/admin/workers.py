"""Workers: wanted and actual, why one is down, and what an operator may do to it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

import msgspec
from fastapi import APIRouter

from daemon.api.admin.access import Operator, Services, Viewer
from daemon.api.admin.answers import Answer, Consequences, Item
from daemon.api.admin.peer import Caller
from daemon.api.admin.services import AdminServices
from daemon.strategy.plans import SavedPlan
from daemon.workers.states import WorkerState
from daemon.workers.view import WorkerView
from engine.errors import Conflict

router = APIRouter(tags=["workers"])
_GOING = frozenset({WorkerState.DRAINING, WorkerState.STOPPING, WorkerState.STOPPED, WorkerState.SLEEPING})
LONGEST_DRAIN_S = 86_400.0


class WorkerItem(Item):
    """wanted: it is to run. memory_planned_bytes: what the active plan predicts for its model; memory_at_exit_bytes:
    the most that the last process had resident."""

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
    memory_at_exit_bytes: int | None
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
async def post_restart(
    worker_id: str, services: Services, caller: Operator, dry_run: bool = False
) -> WorkerAnswer | Consequences:
    """Drain and start again; also wakes a worker that was given up or put to sleep."""
    if dry_run:
        return consequences_of(services, worker_id, "it starts again once they have ended, or the grace is over")

    async def restart(reason: str) -> None:
        await services.supervisor.restart(worker_id, reason=reason)

    return await _done(services, caller, worker_id, "restart", restart)


@router.post("/workers/{worker_id:path}/clear-latch")
async def post_clear_latch(
    worker_id: str, services: Services, caller: Operator, dry_run: bool = False
) -> WorkerAnswer | Consequences:
    """Try a worker anew that was given up after fast exits."""
    view = services.supervisor.view(worker_id)
    if view.state is not WorkerState.LATCHED:
        raise Conflict(f"worker {worker_id} is {view.state}, not latched.", "`bayard workers list` shows the states.")
    if dry_run:
        return consequences_of(services, worker_id, "it is started again, with its count of fast exits at 0")

    async def start(reason: str) -> None:
        await services.supervisor.restart(worker_id, reason=reason)

    return await _done(services, caller, worker_id, "clear-latch", start)


@router.post("/workers/{worker_id:path}/drain")
async def post_drain(
    worker_id: str, services: Services, caller: Operator, dry_run: bool = False
) -> WorkerAnswer | Consequences:
    """Take no more requests, wait for those that run however long they take, end, and sleep until woken."""
    if dry_run:
        return consequences_of(services, worker_id, "they are waited for; then it sleeps until it is woken")

    async def sleep(reason: str) -> None:
        await services.supervisor.sleep(worker_id, LONGEST_DRAIN_S, reason)

    return await _done(services, caller, worker_id, "drain", sleep)


@router.post("/workers/{worker_id:path}/stop")
async def post_stop(
    worker_id: str, services: Services, caller: Operator, dry_run: bool = False
) -> WorkerAnswer | Consequences:
    """As drain, waiting no longer than workers.stop_grace_s."""
    if dry_run:
        grace_s = services.settings.workers.stop_grace_s
        return consequences_of(services, worker_id, f"they have {grace_s:g} s; then it sleeps until it is woken")

    async def sleep(reason: str) -> None:
        await services.supervisor.sleep(worker_id, None, reason)

    return await _done(services, caller, worker_id, "stop", sleep)


@router.post("/workers/{worker_id:path}/wake")
async def post_wake(
    worker_id: str, services: Services, caller: Operator, dry_run: bool = False
) -> WorkerAnswer | Consequences:
    """Start a worker that sleeps."""
    if dry_run:
        return consequences_of(services, worker_id, "it is started")

    async def wake(reason: str) -> None:
        await services.supervisor.wake(worker_id, reason)

    return await _done(services, caller, worker_id, "wake", wake)


@router.post("/workers/{worker_id:path}/kill")
async def post_kill(
    worker_id: str, services: Services, caller: Operator, dry_run: bool = False
) -> WorkerAnswer | Consequences:
    """End its process now; its streams end with an error, and it is started again as after a crash."""
    if dry_run:
        return consequences_of(services, worker_id, "they end with an error, and it is started again")

    async def kill(reason: str) -> None:
        await services.supervisor.kill(worker_id)

    return await _done(services, caller, worker_id, "kill", kill)


async def _done(
    services: AdminServices, caller: Caller, worker_id: str, action: str, act: Callable[[str], Awaitable[None]]
) -> WorkerAnswer:
    """Act, write it into the audit, show the worker as it is now."""
    before = services.supervisor.view(worker_id)
    await act(f"{action} asked by {caller.name}")
    after = services.supervisor.view(worker_id)
    states = ({"state": view.state.value, "pid": view.pid} for view in (after, before))
    await services.tenants.record(caller.actor, f"worker.{action}", f"worker:{worker_id}", *states)
    return WorkerAnswer(item=worker_item(after, None))


def consequences_of(services: AdminServices, worker_id: str, then: str) -> Consequences:
    """Raises: NotFound"""
    view = services.supervisor.view(worker_id)
    others = sum(
        other.model == view.model and other.name != worker_id and other.state is WorkerState.READY
        for other in services.supervisor.views()
    )
    rest = f"{others} other workers serve it" if others else "no other worker serves it"
    told = [f"worker {worker_id} is {view.state} with {view.inflight} requests in flight: {then}"]
    return Consequences(consequences=[*told, f"its model is {view.model}; {rest}"], in_flight=view.inflight)


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
        memory_at_exit_bytes=view.last_exit.peak_rss_bytes if view.last_exit else None,
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
        case WorkerState.SLEEPING:
            return f"`bayard workers wake {view.name}` starts it"
        case _:
            return ""
