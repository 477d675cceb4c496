"""Errors as gRPC statuses: code and message, and the rest as trailing metadata."""

from __future__ import annotations

from typing import NoReturn

import grpc
from grpc.aio import ServicerContext

from daemon.api.errors import sentence
from engine.errors import BayardError


def status_of(error: BayardError) -> grpc.StatusCode:
    return grpc.StatusCode[error.grpc_status]


def details_of(error: BayardError) -> tuple[tuple[str, str], ...]:
    """Metadata is ASCII: other characters are escaped, as in a Python string."""
    pairs = [("bayard-code", error.code), ("bayard-hint", error.hint), ("bayard-param", error.param or "")]
    if error.retry_after_s is not None:
        pairs.append(("retry-after-ms", str(round(error.retry_after_s * 1000))))
    return tuple((key, _ascii(value)) for key, value in pairs if value)


async def abort_with(context: ServicerContext, error: BayardError) -> NoReturn:  # type: ignore[type-arg]
    """End the call with this error."""
    await context.abort(status_of(error), sentence(error), details_of(error))
    raise AssertionError("abort raises")


def _ascii(value: str) -> str:
    return value.encode("ascii", "backslashreplace").decode().replace("\n", " ").replace("\r", " ")
