"""Accelerators: each with its figures now and over the last hours; taken out of use and put back."""

from __future__ import annotations

import asyncio
from datetime import datetime

from fastapi import APIRouter
from pydantic import Field

from daemon.api.admin.access import Operator, Services, Viewer
from daemon.api.admin.answers import Answer, Consequences, Item
from daemon.api.admin.services import AdminServices
from daemon.machine_watch import id_of
from daemon.planning.install import EngineInstall
from daemon.planning.machine_budgets import device_names
from daemon.store.base import utc_now
from daemon.store.marks import Mark, MarkKind, Marks
from daemon.strategy.replanning import replan
from engine.errors import NotFound
from hwdetect.facts import encode
from hwdetect.machine import Accelerator, Machine

router = APIRouter(prefix="/accelerators", tags=["hardware"])


class AcceleratorItem(Item):
    """device: as a worker's configuration names it. drained: why no worker may use it now."""

    id: str
    vendor: str
    state: str
    name: str | None
    reason: str
    fix: str
    utilisation_percent: float | None
    memory_total_bytes: int | None
    memory_used_bytes: int | None
    temperature_c: float | None
    power_w: float | None
    power_limit_w: float | None
    ecc_uncorrected: int | None
    device: str | None = None
    drained: str | None = None
    workers: list[str] = Field(default_factory=list)


class AcceleratorsAnswer(Answer):
    items: list[AcceleratorItem]


class AcceleratorAnswer(Answer):
    """details: every fact that the probes found, as `bayard hw --json` prints them."""

    item: AcceleratorItem
    details: dict[str, object]


class SampleItem(Item):
    """None: the device's tool did not say."""

    at: datetime
    utilisation_percent: float | None
    memory_used_bytes: int | None
    temperature_c: float | None
    power_w: float | None


class HistoryAnswer(Answer):
    """Oldest first, since the daemon's start and no more than six hours."""

    id: str
    items: list[SampleItem]


@router.get("")
async def get_accelerators(services: Services, caller: Viewer) -> AcceleratorsAnswer:
    return _all(services, await services.machine.current())


@router.post("/rescan")
async def post_rescan(services: Services, caller: Operator) -> AcceleratorsAnswer:
    """Ask the vendors' tools now; what has changed is an event."""
    machine = await services.machine.rescan()
    await services.tenants.record(caller.actor, "accelerators.rescan", "host", {"found": len(machine.accelerators)})
    return _all(services, machine)


@router.get("/{accelerator_id}")
async def get_accelerator(accelerator_id: str, services: Services, caller: Viewer) -> AcceleratorAnswer:
    machine = await services.machine.current()
    found, device = _find(machine, accelerator_id)
    return AcceleratorAnswer(item=_item(services, found, device), details=encode(found), as_of=machine.as_of)


@router.get("/{accelerator_id}/history")
async def get_history(accelerator_id: str, services: Services, caller: Viewer) -> HistoryAnswer:
    _find(await services.machine.current(), accelerator_id)
    items = [
        SampleItem(
            at=sample.at,
            utilisation_percent=sample.utilisation_percent,
            memory_used_bytes=sample.memory_used_bytes,
            temperature_c=sample.temperature_c,
            power_w=sample.power_w,
        )
        for sample in services.machine.history(accelerator_id)
    ]
    return HistoryAnswer(id=accelerator_id, items=items)


@router.post("/{accelerator_id}/drain")
async def post_drain(
    accelerator_id: str, services: Services, caller: Operator, dry_run: bool = False
) -> AcceleratorAnswer | Consequences:
    """Put its workers to sleep once their requests have ended, and let none start there, until it is undrained."""
    machine = await services.machine.current()
    found, device = _find(machine, accelerator_id)
    if dry_run:
        views = [view for view in services.supervisor.views() if view.config.device == device]
        told = [f"worker {view.name} sleeps, with {view.inflight} requests in flight" for view in views]
        told += [f"no worker starts on {accelerator_id} until it is undrained"]
        told.append("automatic plans move its models to other devices where they have room; saved plans wait for it")
        return Consequences(consequences=told, in_flight=sum(view.inflight for view in views))
    reason = f"{accelerator_id} is drained by {caller.name}"
    before = {"drained": services.supervisor.drained.get(device)}
    mark = Mark(device, reason, caller.name, utc_now())
    await asyncio.to_thread(Marks(services.store).set, MarkKind.DRAINED, mark)
    asleep = await services.supervisor.drain_device(device, reason)
    moved = await asyncio.to_thread(replan, services.desk, services.plans, services.events, device, reason)
    after = {"device": device, "workers": asleep, "plans": moved}
    await services.tenants.record(caller.actor, "accelerator.drain", f"accelerator:{accelerator_id}", after, before)
    services.events.publish("hardware", accelerator_id, "in use", "drained", reason)
    await services.controller.reconcile(reason)
    return AcceleratorAnswer(item=_item(services, found, device), details=encode(found), as_of=machine.as_of)


@router.post("/{accelerator_id}/undrain")
async def post_undrain(accelerator_id: str, services: Services, caller: Operator) -> AcceleratorAnswer:
    """Wake what the drain put to sleep. Harmless where it is not drained."""
    machine = await services.machine.current()
    found, device = _find(machine, accelerator_id)
    before = services.supervisor.drained.get(device)
    await asyncio.to_thread(Marks(services.store).clear, MarkKind.DRAINED, [device])
    woken = await services.supervisor.undrain_device(device)
    moved: list[str] = []
    if before is not None:
        reason = f"{accelerator_id} is in use again"
        moved = await asyncio.to_thread(replan, services.desk, services.plans, services.events, device, reason)
    after = {"device": device, "workers": woken, "plans": moved}
    what = f"accelerator:{accelerator_id}"
    await services.tenants.record(caller.actor, "accelerator.undrain", what, after, {"drained": before})
    if before is not None:
        services.events.publish("hardware", accelerator_id, "drained", "in use", f"by {caller.name}")
        await services.controller.reconcile(reason)
    return AcceleratorAnswer(item=_item(services, found, device), details=encode(found), as_of=machine.as_of)


def _all(services: AdminServices, machine: Machine) -> AcceleratorsAnswer:
    names = device_names(machine, EngineInstall.full())
    items = [_item(services, found, device) for found, device in zip(machine.accelerators, names, strict=True)]
    return AcceleratorsAnswer(items=items, as_of=machine.as_of)


def _find(machine: Machine, accelerator_id: str) -> tuple[Accelerator, str]:
    """With its device's name for workers. Raises: NotFound"""
    for found, device in zip(machine.accelerators, device_names(machine, EngineInstall.full()), strict=True):
        if id_of(found) == accelerator_id:
            return found, device
    known = ", ".join(id_of(found) for found in machine.accelerators) or "none"
    raise NotFound(f"there is no accelerator {accelerator_id!r}.", f"There are: {known}.")


def _item(services: AdminServices, found: Accelerator, device: str) -> AcceleratorItem:
    return AcceleratorItem(
        id=id_of(found),
        vendor=found.vendor.value,
        state=found.state.value,
        name=found.name,
        reason=found.reason,
        fix=found.fix,
        utilisation_percent=found.utilisation_percent,
        memory_total_bytes=found.memory_total_bytes,
        memory_used_bytes=found.memory_used_bytes,
        temperature_c=found.temperature_c,
        power_w=found.power_w,
        power_limit_w=found.power_limit_w,
        ecc_uncorrected=found.ecc_uncorrected,
        device=device,
        drained=services.supervisor.drained.get(device),
        workers=[view.name for view in services.supervisor.views() if view.config.device == device],
    )
