"""GET admission, POST admission/pause and resume: whether new requests are let in."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from pydantic import Field

from daemon.api.admin.access import Operator, Services, Viewer
from daemon.api.admin.answers import Answer, Body, Consequences
from daemon.api.admin.services import AdminServices

router = APIRouter(prefix="/admission", tags=["admission"])


class AdmissionAnswer(Answer):
    """paused: why new requests are held back, None: they are not. refused_guesses: of wrong keys, since the start."""

    paused: str | None
    draining: bool
    running: int
    waiting: int
    max_queue: int
    refused_guesses: int


class PauseBody(Body):
    reason: Annotated[str, Field(min_length=1, max_length=200)] = "an operator asked for it"


@router.get("")
async def get_admission(services: Services, caller: Viewer) -> AdmissionAnswer:
    return _answer(services)


@router.post("/pause")
async def post_pause(
    services: Services, caller: Operator, body: PauseBody | None = None, dry_run: bool = False
) -> AdmissionAnswer | Consequences:
    """Refuse new requests with 503 and Retry-After; what runs goes on."""
    admission = services.tenants.admission
    if dry_run:
        told = "every new request is answered 503 with Retry-After until resumed; what runs goes on"
        return Consequences(consequences=[told], in_flight=len(services.serving.live))
    reason = (body or PauseBody()).reason
    before, admission.paused = admission.paused, reason
    if before != reason:
        await services.tenants.record(
            caller.actor, "admission.pause", "admission", {"paused": reason}, {"paused": before}
        )
        services.events.publish("admission", "bayard", "open", "paused", reason)
    return _answer(services)


@router.post("/resume")
async def post_resume(services: Services, caller: Operator) -> AdmissionAnswer:
    admission = services.tenants.admission
    before, admission.paused = admission.paused, ""
    if before:
        await services.tenants.record(caller.actor, "admission.resume", "admission", {"paused": ""}, {"paused": before})
        services.events.publish("admission", "bayard", "paused", "open", "resumed")
    return _answer(services)


def _answer(services: AdminServices) -> AdmissionAnswer:
    admission = services.tenants.admission
    return AdmissionAnswer(
        paused=admission.paused or None,
        draining=admission.draining,
        running=admission.running,
        waiting=admission.waiting,
        max_queue=admission.max_queue,
        refused_guesses=services.tenants.brake.refusals,
    )
