"""GET operations[/{id}] and POST operations/{id}/cancel: long work that was started earlier."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from fastapi import APIRouter

from daemon.api.admin.access import Operator, Services, Viewer
from daemon.api.admin.answers import Answer, Item
from daemon.models.operations import Operation

router = APIRouter(tags=["operations"])


class ProgressItem(Item):
    stage: str
    file: str
    done_bytes: int
    total_bytes: int


class OperationErrorItem(Item):
    code: str
    message: str
    hint: str


class OperationItem(Item):
    """state: waiting, running, done, failed, cancelled."""

    id: str
    kind: str
    subject: str
    state: str
    started_at: datetime
    ended_at: datetime | None
    progress: ProgressItem | None
    result: dict[str, Any] | None
    error: OperationErrorItem | None


class OperationAnswer(Answer):
    item: OperationItem


class OperationsAnswer(Answer):
    items: list[OperationItem]


@router.get("/operations")
async def get_operations(services: Services, caller: Viewer) -> OperationsAnswer:
    return OperationsAnswer(items=[operation_item(operation) for operation in services.operations.all()])


@router.get("/operations/{operation_id}")
async def get_operation(operation_id: str, services: Services, caller: Viewer) -> OperationAnswer:
    return OperationAnswer(item=operation_item(services.operations.get(operation_id)))


@router.post("/operations/{operation_id}/cancel")
async def post_cancel(operation_id: str, services: Services, caller: Operator) -> OperationAnswer:
    operation = services.operations.cancel(operation_id)
    await services.tenants.record(caller.actor, "operation.cancel", f"operation:{operation_id}")
    return OperationAnswer(item=operation_item(operation))


def operation_item(operation: Operation) -> OperationItem:
    progress, error = operation.progress, operation.error
    return OperationItem(
        id=operation.id,
        kind=operation.kind,
        subject=operation.subject,
        state=operation.state.value,
        started_at=operation.started_at,
        ended_at=operation.ended_at,
        progress=None
        if progress is None
        else ProgressItem(
            stage=progress.stage, file=progress.file, done_bytes=progress.done_bytes, total_bytes=progress.total_bytes
        ),
        result=operation.result,
        error=None if error is None else OperationErrorItem(code=error.code, message=error.message, hint=error.hint),
    )
