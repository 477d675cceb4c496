"""Doctor: the box's checks, run now or as an operation to come back to, and the bundle for support."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastapi import APIRouter

from daemon.api.admin.access import Operator, Services, Viewer
from daemon.api.admin.answers import Answer, Body, Item
from daemon.api.admin.operations import OperationAnswer, operation_item
from daemon.api.admin.services import AdminServices
from daemon.models.copying import Cancelled, Report
from daemon.settings_load import setting_rows
from daemon.store.base import utc_now
from daemon.store.lock import make_private_dir
from engine.errors import InvalidParameter, NotFound, StoreError
from hwdetect import doctor
from hwdetect.bundle import write_bundle
from hwdetect.facts import encode
from hwdetect.machine import Machine

router = APIRouter(prefix="/doctor", tags=["doctor"])
KIND = "doctor"


class CheckItem(Item):
    """verdict: ok, info, warning, error, as `bayard doctor` prints it."""

    id: str
    title: str
    verdict: str
    text: str
    fix: str
    took_ms: int


class ChecksAnswer(Answer):
    items: list[CheckItem]


class RunBody(Body):
    """only, skip: ids of checks, or of groups of them."""

    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()


@router.get("/checks")
async def get_checks(services: Services, caller: Viewer) -> ChecksAnswer:
    """Run every check now, on a picture of the machine that is seconds old."""
    machine = await services.machine.current()
    return ChecksAnswer(items=await asyncio.to_thread(_checked, services, machine, (), ()))


@router.post("/runs", status_code=202)
async def post_run(services: Services, caller: Operator, body: RunBody | None = None) -> OperationAnswer:
    """Look at the machine anew and check it; `runs/{id}` has the verdicts once it has ended."""
    asked = body or RunBody()
    machine = await services.machine.rescan()

    def work(report: Report, cancelled: Cancelled) -> dict[str, Any]:
        return {"items": [item.model_dump() for item in _checked(services, machine, asked.only, asked.skip)]}

    operation = services.operations.start(KIND, "checks", work)
    await services.tenants.record(caller.actor, "doctor.run", "host", asked.model_dump())
    return OperationAnswer(item=operation_item(operation))


@router.get("/runs/{run_id}")
async def get_run(run_id: str, services: Services, caller: Viewer) -> OperationAnswer:
    """Its result is {"items": [check]}, as `checks` answers them."""
    operation = services.operations.get(run_id)
    if operation.kind != KIND:
        raise NotFound(f"the operation {run_id} is no run of the doctor.", "It is at operations/{id}.")
    return OperationAnswer(item=operation_item(operation))


@router.post("/bundles", status_code=202)
async def post_bundle(services: Services, caller: Operator) -> OperationAnswer:
    """Write a redacted archive to state_dir/support; the operation's result names it."""
    machine = await services.machine.current()
    state = {
        "workers": [f"{view.name} {view.model} {view.state} {view.reason}" for view in services.supervisor.views()],
        "events": [
            f"{e.at.isoformat()} {e.kind} {e.from_state} -> {e.to_state} {e.reason}" for e in services.events.recent()
        ],
    }

    def work(report: Report, cancelled: Cancelled) -> dict[str, Any]:
        folder = services.settings.state_dir / "support"
        path = folder / f"bayard-support-{utc_now():%Y%m%dT%H%M%S%fZ}.tar.gz"
        context = doctor.Context(machine, services.settings.state_dir, ())
        settings = {row.key: str(row.value) for row in setting_rows(services.settings)}
        extras = {"settings.json": json.dumps(settings, indent=1), "state.json": json.dumps(state, indent=1)}
        extras |= {f"log-{view.log_path.stem}.txt": _tail(view.log_path) for view in services.supervisor.views()}
        try:
            make_private_dir(folder)
            write_bundle(path, machine, doctor.run(context, (), ()), extras)
        except OSError as error:
            raise StoreError(f"{path} cannot be written: {error.strerror or error}.", "Check the disk.") from error
        return {"path": str(path), "size_bytes": path.stat().st_size}

    operation = services.operations.start("support-bundle", "support", work)
    await services.tenants.record(caller.actor, "doctor.bundle", "host")
    return OperationAnswer(item=operation_item(operation))


def _checked(services: AdminServices, machine: Machine, only: Sequence[str], skip: Sequence[str]) -> list[CheckItem]:
    """Blocks. Raises: InvalidParameter"""
    try:
        results = doctor.run(doctor.Context(machine, services.settings.state_dir, ()), only, skip)
    except ValueError as error:
        raise InvalidParameter(f"{error}.", "`doctor/checks` lists all ids.", param="only") from error
    return [CheckItem(**encode(result)) for result in results]


def _tail(path: Path) -> str:
    from daemon.workers.worker_log import last_lines

    return "\n".join(last_lines(path, 500))
