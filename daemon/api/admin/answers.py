"""The base of every admin answer, and the one shape of its errors."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Literal, NamedTuple, TypeVar

from fastapi import Depends, Query
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from daemon.store.base import utc_now
from engine.errors import InvalidParameter

MOST_ITEMS = 500
T = TypeVar("T")


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


class Paging(NamedTuple):
    """Which part of a long list: what comes behind the item of this id, and how many at most."""

    after: str | None
    limit: int

    def of(self, items: list[T], id_of: Callable[[T], str]) -> tuple[list[T], str | None]:
        """The part, and the `after` of the next one; None with the last. Raises: InvalidParameter"""
        begin = 0
        if self.after is not None:
            ids = [id_of(item) for item in items]
            if self.after not in ids:
                raise InvalidParameter(f"There is no {self.after[:64]!r} in the list.", "Begin anew.", param="after")
            begin = ids.index(self.after) + 1
        part = items[begin : begin + self.limit]
        return part, id_of(part[-1]) if begin + self.limit < len(items) else None


def paging(after: str | None = None, limit: Annotated[int, Query(ge=1, le=MOST_ITEMS)] = MOST_ITEMS) -> Paging:
    return Paging(after, limit)


Page = Annotated[Paging, Depends(paging)]


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
