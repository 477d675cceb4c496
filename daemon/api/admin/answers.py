"""The base of every admin answer, and the one shape of its errors."""

from __future__ import annotations

import secrets
from datetime import datetime
from typing import Literal

from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from daemon.store.base import utc_now


class Answer(BaseModel):
    """as_of is the daemon's clock; every age on a screen is counted from it."""

    model_config = ConfigDict(extra="forbid")

    as_of: datetime = Field(default_factory=utc_now)


class Item(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Body(BaseModel):
    """A request's body; an unknown key is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Consequences(Answer):
    """What a write would do, in sentences; nothing was done. in_flight: requests that it touches."""

    dry_run: Literal[True] = True
    consequences: list[str]
    in_flight: int = 0


class ErrorAnswer(BaseModel):
    code: str
    message: str
    hint: str
    request_id: str
    param: str | None = None


def error_answer(status: int, code: str, message: str, hint: str = "", param: str | None = None) -> JSONResponse:
    """The one shape of every refusal."""
    request_id = "adm_" + secrets.token_hex(8)
    body = ErrorAnswer(code=code, message=message, hint=hint, request_id=request_id, param=param)
    return JSONResponse(body.model_dump(), status, {"x-request-id": request_id})
