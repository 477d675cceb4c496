"""GET models, POST imports, verify, DELETE: what is on this box and taking more in."""

from __future__ import annotations

import asyncio
from datetime import datetime
from pathlib import Path
from typing import Any

from fastapi import APIRouter

from daemon.api.admin.access import Admin, Operator, Services, Viewer
from daemon.api.admin.answers import Answer, Body, Consequences, Item
from daemon.api.admin.before import model_facts
from daemon.api.admin.operations import OperationAnswer, operation_item
from daemon.api.admin.services import AdminServices
from daemon.models.copying import Cancelled, Report
from daemon.models.intake import import_any
from daemon.models.record import ModelRecord
from engine.errors import InvalidParameter

router = APIRouter(tags=["models"])


class FileItem(Item):
    path: str
    size_bytes: int
    sha256: str


class ModelItem(Item):
    """served: a worker answers for it now. verified_at None: not since it was imported. base: an adapter's."""

    name: str
    state: str
    format: str
    architecture: str
    path: str
    linked: bool
    weight_bytes: int
    num_parameters: int
    max_context_tokens: int
    source_dtype: str
    licence: str | None
    imported_at: datetime
    verified_at: datetime | None
    served: bool
    plans: list[str]
    files: list[FileItem]
    base: str | None = None


class ModelsAnswer(Answer):
    items: list[ModelItem]


class ModelAnswer(Answer):
    item: ModelItem


class ImportBody(Body):
    """path lies on the daemon's machine. link: use the files where they are.

    base: the imported model that an adapter runs on, where it does not name one that is here itself.
    """

    path: str
    name: str | None = None
    link: bool = False
    base: str | None = None


class DeletedAnswer(Answer):
    deleted: str


@router.get("/models")
async def get_models(services: Services, caller: Viewer) -> ModelsAnswer:
    return ModelsAnswer(items=await asyncio.to_thread(_items, services))


@router.get("/models/{name:path}")
async def get_model(name: str, services: Services, caller: Viewer) -> ModelAnswer:
    def read() -> ModelItem:
        return _item(services, services.models.get(name), services.plans.using(name))

    return ModelAnswer(item=await asyncio.to_thread(read))


@router.post("/imports", status_code=202)
async def post_import(body: ImportBody, services: Services, caller: Operator) -> OperationAnswer:
    """Begin an import; look at operations/{id} for its progress."""
    path = Path(body.path)
    if not path.is_absolute():
        raise InvalidParameter(
            f"The path {body.path!r} is not absolute.", "Send it as the daemon sees it.", param="path"
        )

    def work(report: Report, cancelled: Cancelled) -> dict[str, Any]:
        record = import_any(services.models, path, body.name, body.link, report, cancelled, body.base)
        return {"model": record.name, "size_bytes": sum(file.size_bytes for file in record.files)}

    operation = services.operations.start("import", body.name or path.name, work)
    await services.tenants.record(caller.actor, "model.import", f"path:{path}", body.model_dump())
    return OperationAnswer(item=operation_item(operation))


@router.post("/models/{name:path}/verify", status_code=202)
async def post_verify(name: str, services: Services, caller: Operator) -> OperationAnswer:
    """Hash the model's files again; look at operations/{id} for the result."""
    await asyncio.to_thread(services.models.get, name)

    def work(report: Report, cancelled: Cancelled) -> dict[str, Any]:
        record, problems = services.models.verify(name, report, cancelled)
        return {"model": name, "state": record.state.value, "problems": problems}

    operation = services.operations.start("verify", name, work)
    await services.tenants.record(caller.actor, "model.verify", f"model:{name}")
    return OperationAnswer(item=operation_item(operation))


@router.delete("/models/{name:path}")
async def delete_model(
    name: str, services: Services, caller: Admin, unload: bool = False, dry_run: bool = False
) -> DeletedAnswer | Consequences:
    """Refused while a plan or a worker uses it. unload: take it out of the automatic plans and drain it first."""
    if dry_run:
        return await asyncio.to_thread(_deletion, services, name)
    before = await model_facts(services, name)
    if unload:
        await services.controller.unload(name, await asyncio.to_thread(services.desk.withdraw, name))
    await asyncio.to_thread(services.models.delete, name)
    await services.tenants.record(caller.actor, "model.delete", f"model:{name}", {"unload": unload}, before)
    return DeletedAnswer(deleted=name)


def _deletion(services: AdminServices, name: str) -> Consequences:
    """Blocks. Raises: ModelNotFound"""
    record = services.models.get(name)
    users = services.models.users_of(name)
    size = sum(file.size_bytes for file in record.files)
    told = [
        f"{name} is forgotten; its files stay where they are" if record.linked
        else f"{name} is forgotten and {size / 2**30:.2f} GiB of copies are removed",
        f"refused while it is used by {', '.join(users)}" if users else "nothing uses it",
    ]  # fmt: skip
    return Consequences(
        consequences=told,
        in_flight=sum(view.inflight for view in services.supervisor.views() if view.model == name),
    )


def _items(services: AdminServices) -> list[ModelItem]:
    plans = services.plans.all()
    return [
        _item(services, record, [plan.name for plan in plans if record.name in plan.names])
        for record in services.models.all()
    ]


def _item(services: AdminServices, record: ModelRecord, plans: list[str]) -> ModelItem:
    return ModelItem(
        name=record.name,
        state=record.state.value,
        format=record.format,
        architecture=record.architecture,
        path=record.path,
        linked=record.linked,
        weight_bytes=record.weight_bytes,
        num_parameters=record.num_parameters,
        max_context_tokens=record.max_context_tokens,
        source_dtype=record.source_dtype,
        licence=record.licence,
        imported_at=record.imported_at,
        verified_at=record.verified_at,
        served=record.name in services.router.models(),
        plans=plans,
        files=[FileItem(path=file.path, size_bytes=file.size_bytes, sha256=file.sha256) for file in record.files],
        base=record.base,
    )
