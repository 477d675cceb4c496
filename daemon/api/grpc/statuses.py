"""Errors as gRPC statuses: code and message, and the rest as trailing metadata, for people and as google.rpc.Status."""

from __future__ import annotations

from typing import NoReturn

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc.aio import ServicerContext

from daemon.api.errors import sentence
from engine.errors import BayardError

DETAILS = "grpc-status-details-bin"
DOMAIN = "bayard"
MAX_TEXT = 1024  # of one text: a client takes 8 KiB of metadata in all


def status_of(error: BayardError) -> grpc.StatusCode:
    return grpc.StatusCode[error.grpc_status]


def details_of(error: BayardError) -> tuple[tuple[str, str | bytes], ...]:
    """Metadata is ASCII: other characters are escaped, as in a Python string."""
    pairs = [("bayard-code", error.code), ("bayard-hint", error.hint), ("bayard-param", error.param or "")]
    if error.retry_after_s is not None:
        pairs.append(("retry-after-ms", str(round(error.retry_after_s * 1000))))
    return (*((key, _ascii(value)) for key, value in pairs if value), (DETAILS, _status(error).SerializeToString()))


async def abort_with(context: ServicerContext, error: BayardError) -> NoReturn:  # type: ignore[type-arg]
    """End the call with this error."""
    await context.abort(status_of(error), sentence(error)[:MAX_TEXT], details_of(error))
    raise AssertionError("abort raises")


def _status(error: BayardError) -> status_pb2.Status:
    """The error in the words that gRPC libraries read: ErrorInfo, BadRequest, RetryInfo."""
    info = {"hint": error.hint[:MAX_TEXT]} if error.hint else {}
    details: list[Message] = [error_details_pb2.ErrorInfo(reason=error.code, domain=DOMAIN, metadata=info)]
    if error.param:
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=error.param[:MAX_TEXT], description=error.message[:MAX_TEXT]
        )
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if error.retry_after_s is not None:
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(round(error.retry_after_s * 1000))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    packed = []
    for detail in details:
        one = any_pb2.Any()
        one.Pack(detail)
        packed.append(one)
    number: int = status_of(error).value[0]
    return status_pb2.Status(code=number, message=sentence(error)[:MAX_TEXT], details=packed)


def _ascii(value: str) -> str:
    return value[:MAX_TEXT].encode("ascii", "backslashreplace").decode().replace("\n", " ").replace("\r", " ")
