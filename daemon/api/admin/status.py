"""GET status and whoami: what state the whole box is in, and who is asking."""

from __future__ import annotations

import asyncio
import socket
from datetime import datetime

from fastapi import APIRouter

from daemon import __version__
from daemon.api.admin.access import Services, Viewer
from daemon.api.admin.answers import Answer, Item
from daemon.api.admin.services import AdminServices
from daemon.workers.states import WorkerState
from daemon.workers.view import WorkerView

router = APIRouter(tags=["status"])
CERTIFICATE_WARNING_S = 14 * 86_400.0
_COMING = frozenset({WorkerState.STARTING, WorkerState.WARMING})
_GOING = frozenset({WorkerState.DRAINING, WorkerState.STOPPING, WorkerState.STOPPED, WorkerState.SLEEPING})


class StatusAnswer(Answer):
    """state: starting, serving, degraded, draining. on_demand: models that the next request for them loads."""

    hostname: str
    version: str
    state: str
    reasons: list[str]
    plan: str | None
    plan_reason: str
    workers_ready: int
    workers_wanted: int
    models: list[str]
    on_demand: list[str]
    requests_running: int
    requests_waiting: int
    started_at: datetime
    http: str | None
    admin_tls: str | None
    grpc: str | None


class WhoAmIAnswer(Item):
    name: str
    role: str


@router.get("/status")
async def get_status(services: Services, caller: Viewer) -> StatusAnswer:
    strategy = await asyncio.to_thread(services.controller.view)
    views = services.supervisor.views()
    wanted = [view for view in views if view.state not in _GOING]
    reasons = _reasons(services, strategy.problem)
    state = _state(services, wanted, reasons)
    running, waiting = _requests(services, views)
    return StatusAnswer(
        hostname=socket.gethostname(),
        version=__version__,
        state=state,
        reasons=reasons,
        plan=strategy.plan,
        plan_reason=strategy.reason,
        workers_ready=sum(view.state is WorkerState.READY for view in wanted),
        workers_wanted=len(wanted),
        models=services.router.models(),
        on_demand=sorted(services.router.on_demand()),
        requests_running=running,
        requests_waiting=waiting,
        started_at=services.started_at,
        http=services.http_address,
        admin_tls=services.admin_tls_address,
        grpc=services.grpc_address,
    )


@router.get("/whoami")
async def get_whoami(caller: Viewer) -> WhoAmIAnswer:
    return WhoAmIAnswer(name=caller.name, role=caller.role.name.lower())


def _reasons(services: AdminServices, problem: str | None) -> list[str]:
    reasons = services.supervisor.sickly()
    if problem:
        reasons.append(problem)
    if services.tls is not None and services.tls.left_s < CERTIFICATE_WARNING_S:
        days = services.tls.left_s / 86_400
        reasons.append(f"the certificate expires in {days:.0f} days: `bayard tls rotate`, or replace the site's own")
    if services.tenants.usage.problem is not None:
        reasons.append(f"usage waits in memory: {services.tenants.usage.problem}")
    if services.tenants.admission.paused:
        reasons.append(f"admission is paused: {services.tenants.admission.paused}")
    if services.tenants.admission.draining:
        reasons.append("the daemon is stopping")
    return reasons


def _state(services: AdminServices, wanted: list[WorkerView], reasons: list[str]) -> str:
    if services.tenants.admission.draining:
        return "draining"
    if reasons:
        return "degraded"
    return "starting" if any(view.state in _COMING for view in wanted) else "serving"


def _requests(services: AdminServices, views: list[WorkerView]) -> tuple[int, int]:
    """Running in the engines, and waiting in them or at the door."""
    stats = [view.stats for view in views if view.stats is not None]
    waiting = sum(stat.waiting for stat in stats) + services.tenants.admission.waiting
    return sum(stat.running for stat in stats), waiting
