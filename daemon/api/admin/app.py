"""build_admin_app: the FastAPI application on the admin socket."""

from __future__ import annotations

from typing import Any

import structlog
from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from daemon.api.admin import (
    accelerators,
    adapting,
    admission,
    aliases,
    attention,
    audit_log,
    backups,
    bundles,
    certificates,
    doctor,
    events,
    hardware,
    imports,
    keys,
    logs,
    models,
    operations,
    overrides,
    planning,
    plans,
    requests,
    schedule,
    settings,
    status,
    summary,
    tenants,
    usage_report,
    workers,
)
from daemon.api.admin.answers import ErrorAnswer, error_answer
from daemon.api.admin.faults import Attention
from daemon.api.admin.services import AdminServices
from daemon.api.admin.write_rules import WriteRules
from daemon.store.marks import Marks
from engine.errors import BayardError, InvalidParameter

PREFIX = "/admin/v1"
_MODULES = (
    status, attention, hardware, accelerators, doctor, models, imports, operations, planning, plans, workers, requests,
    schedule, overrides, events, summary, tenants, keys, adapting, admission, logs, bundles, aliases, certificates,
    backups, settings, audit_log, usage_report,
)  # fmt: skip
ROUTERS: tuple[APIRouter, ...] = tuple(module.router for module in _MODULES)
log = structlog.get_logger(__name__)
_ERRORS: dict[int | str, dict[str, Any]] = {
    status_code: {"model": ErrorAnswer} for status_code in (400, 401, 403, 404, 405, 409, 422, 429, 500, 503)
}


def build_admin_app(appliance: AdminServices) -> FastAPI:
    """The ASGI application that the admin socket's server runs, with PeerProtocol as its HTTP protocol."""
    app = FastAPI(
        title="Bayard admin API", version="1", docs_url=None, redoc_url=None, openapi_url=f"{PREFIX}/openapi.json"
    )
    app.state.services = appliance
    app.state.attention = Attention(Marks(appliance.store))
    app.add_middleware(WriteRules)
    every = APIRouter(prefix=PREFIX, responses=_ERRORS, dependencies=[Depends(_refuse_unknown_query)])
    for router in ROUTERS:
        every.include_router(router)
    app.include_router(every)
    app.add_exception_handler(BayardError, _own_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _route_error)
    app.add_exception_handler(Exception, _foreign_error)
    return app


async def _refuse_unknown_query(request: Request) -> None:
    """A misspelt parameter, or a dry run of what has none, is refused rather than ignored. Raises: InvalidParameter"""
    known = _query_names(request.scope["route"].dependant)
    for name in request.query_params:
        if name not in known:
            there = f"It has {', '.join(sorted(known))}." if known else "It has none."
            raise InvalidParameter(f"There is no parameter {name[:64]!r} here.", there, param=name[:64])


def _query_names(dependant: Dependant) -> set[str]:
    return {field.alias for field in dependant.query_params}.union(*map(_query_names, dependant.dependencies))


async def _own_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, BayardError)
    return error_answer(error.http_status, error.code, error.message, error.hint, error.param)


async def _validation_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"] if part not in ("body", "query", "path"))
    return error_answer(400, "invalid_parameter", f"{where or 'the body'}: {first['msg']}.", param=where or None)


async def _route_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "invalid_request")
    answer = error_answer(error.status_code, code, f"{request.method} {request.url.path}: {error.detail}.")
    answer.headers.update(error.headers or {})
    return answer


async def _foreign_error(request: Request, error: Exception) -> JSONResponse:
    log.error("admin_request_broke", path=request.url.path, exc_info=error)
    return error_answer(500, "internal_error", "Bayard failed on this request.", "The daemon's log tells more.")
