"""build_admin_app: the FastAPI application on the admin socket."""

from __future__ import annotations

import secrets
from typing import Any

import structlog
from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from daemon.api.admin import (
    audit_log,
    events,
    hardware,
    keys,
    models,
    operations,
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
from daemon.api.admin.answers import ErrorAnswer
from daemon.api.admin.services import AdminServices
from engine.errors import BayardError

PREFIX = "/admin/v1"
_MODULES = (
    status, hardware, models, operations, planning, plans, workers, requests, schedule, events, summary, tenants, keys,
    settings, audit_log, usage_report,
)  # fmt: skip
ROUTERS: tuple[APIRouter, ...] = tuple(module.router for module in _MODULES)
log = structlog.get_logger(__name__)
_ERRORS: dict[int | str, dict[str, Any]] = {
    status_code: {"model": ErrorAnswer} for status_code in (400, 403, 404, 405, 422, 500, 503)
}


def build_admin_app(appliance: AdminServices) -> FastAPI:
    """The ASGI application that the admin socket's server runs, with PeerProtocol as its HTTP protocol."""
    app = FastAPI(
        title="Bayard admin API", version="1", docs_url=None, redoc_url=None, openapi_url=f"{PREFIX}/openapi.json"
    )
    app.state.services = appliance
    every = APIRouter(prefix=PREFIX, responses=_ERRORS)
    for router in ROUTERS:
        every.include_router(router)
    app.include_router(every)
    app.add_exception_handler(BayardError, _own_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _route_error)
    app.add_exception_handler(Exception, _foreign_error)
    return app


def _answer(status_code: int, code: str, message: str, hint: str = "", param: str | None = None) -> JSONResponse:
    request_id = "adm_" + secrets.token_hex(8)
    body = ErrorAnswer(code=code, message=message, hint=hint, request_id=request_id, param=param)
    return JSONResponse(body.model_dump(), status_code, {"x-request-id": request_id})


async def _own_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, BayardError)
    return _answer(error.http_status, error.code, error.message, error.hint, error.param)


async def _validation_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"] if part not in ("body", "query", "path"))
    return _answer(400, "invalid_parameter", f"{where or 'the body'}: {first['msg']}.", param=where or None)


async def _route_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "invalid_request")
    answer = _answer(error.status_code, code, f"{request.method} {request.url.path}: {error.detail}.")
    answer.headers.update(error.headers or {})
    return answer


async def _foreign_error(request: Request, error: Exception) -> JSONResponse:
    log.error("admin_request_broke", path=request.url.path, exc_info=error)
    return _answer(500, "internal_error", "Bayard failed on this request.", "The daemon's log tells more.")
