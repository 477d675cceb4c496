"""/healthz, /readyz and /metrics: answers that follow what the workers do, not that a process exists."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from daemon.api.exchange import Exchange
from daemon.api.openai.reply import encode
from daemon.api.services import Services
from daemon.telemetry.metrics import CONTENT_TYPE
from daemon.workers.states import WorkerState
from daemon.workers.view import WorkerView

_COMING = (WorkerState.STOPPED, WorkerState.STARTING, WorkerState.WARMING, WorkerState.BACKOFF)


@dataclass(frozen=True, slots=True)
class Verdict:
    """ok, and a sentence for everything that is not."""

    ok: bool
    reasons: tuple[str, ...] = ()


def liveness(services: Services) -> Verdict:
    """Whether every serving worker's step loop moves. Without workers there is nothing that could be stuck."""
    limit_s = services.settings.workers.stall_after_s
    stuck = tuple(
        f"worker {view.name}: no step or beat for {view.step_age_s:.1f} s (limit {limit_s:.1f} s)"
        for view in services.supervisor.views()
        if view.state in (WorkerState.READY, WorkerState.DRAINING)
        and view.step_age_s is not None
        and view.step_age_s > limit_s
    )
    return Verdict(not stuck, stuck)


def readiness(services: Services) -> Verdict:
    """Whether a request sent now would be taken by some model."""
    reasons: list[str] = []
    if services.tenants.admission.draining:
        reasons.append("Bayard is stopping and takes no new requests")
    if not services.router.models():
        asked_for = services.router.on_demand()  # which a request would load, and wait for
        views = [view for view in services.supervisor.views() if view.model not in asked_for]
        if not asked_for or any(view.state in _COMING for view in views):
            reasons.extend(_why_not(view) for view in views)
            if not views:
                reasons.append(_why_none(services))
    reasons.extend(liveness(services).reasons)
    return Verdict(not reasons, tuple(reasons))


async def healthz(exchange: Exchange) -> None:
    """GET /healthz"""
    await _answer(exchange, liveness(exchange.services), {})


async def readyz(exchange: Exchange) -> None:
    """GET /readyz"""
    workers = {view.name: view.state.value for view in exchange.services.supervisor.views()}
    facts = {"models": exchange.services.router.models(), "workers": workers}
    await _answer(exchange, readiness(exchange.services), facts)


async def metrics(exchange: Exchange) -> None:
    """GET /metrics"""
    await exchange.respond(200, exchange.services.metrics.render(), ((b"content-type", CONTENT_TYPE.encode()),))


async def _answer(exchange: Exchange, verdict: Verdict, facts: dict[str, Any]) -> None:
    body = {"status": "ok" if verdict.ok else "unavailable", "reasons": list(verdict.reasons)} | facts
    await exchange.respond(200 if verdict.ok else 503, encode(body))


def _why_none(services: Services) -> str:
    imported = sorted(services.router.imported())
    if imported:
        return f"no worker is wanted yet; imported: {', '.join(imported)}; `bayard status` tells the plan in force"
    return "no worker is wanted: import a model with `bayard models import PATH`"


def _why_not(view: WorkerView) -> str:
    what = f"worker {view.name}" + (f" for {view.model}" if view.model != view.name else "")
    return f"{what} is {_STATE_WORDS.get(view.state, view.state)}" + (f": {view.reason}" if view.reason else "")


_STATE_WORDS = {WorkerState.BACKOFF: "waiting for its next start", WorkerState.LATCHED: "given up"}
