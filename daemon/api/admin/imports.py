"""GET imports[/{id}]: models on their way in, which are operations of their own kind."""

from __future__ import annotations

from fastapi import APIRouter

from daemon.api.admin.access import Services, Viewer
from daemon.api.admin.operations import OperationAnswer, OperationsAnswer, operation_item
from engine.errors import NotFound

router = APIRouter(prefix="/imports", tags=["models"])
KINDS = frozenset({"import", "bundle"})


@router.get("")
async def get_imports(services: Services, caller: Viewer) -> OperationsAnswer:
    """Newest first, with those that have ended and are still remembered."""
    found = [operation for operation in services.operations.all() if operation.kind in KINDS]
    return OperationsAnswer(items=[operation_item(operation) for operation in found])


@router.get("/{import_id}")
async def get_import(import_id: str, services: Services, caller: Viewer) -> OperationAnswer:
    operation = services.operations.get(import_id)
    if operation.kind not in KINDS:
        raise NotFound(f"the operation {import_id} is no import.", "It is at operations/{id}.")
    return OperationAnswer(item=operation_item(operation))
