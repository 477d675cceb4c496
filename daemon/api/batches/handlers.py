"""The handlers of /v1/batches."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from daemon.api.batches.pages import page
from daemon.api.exchange import Exchange
from daemon.api.openai.reply import encode
from daemon.batches.records import BatchRecord, BatchState

_MOMENTS = (
    BatchState.IN_PROGRESS,
    BatchState.FINALIZING,
    BatchState.COMPLETED,
    BatchState.FAILED,
    BatchState.EXPIRED,
    BatchState.CANCELLING,
    BatchState.CANCELLED,
)


class BatchBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    input_file_id: Annotated[str, Meta(min_length=1, max_length=64)]
    endpoint: str
    completion_window: str
    metadata: dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]] | None = None


_decoder = msgspec.json.Decoder(BatchBody)


async def create_batch(exchange: Exchange) -> None:
    """POST /v1/batches"""
    body: BatchBody = await exchange.read_json(_decoder)
    assert exchange.principal is not None
    record = await exchange.services.batches.create(
        exchange.principal, body.input_file_id, body.endpoint, body.completion_window, body.metadata
    )
    await exchange.respond(200, encode(batch_object(record)))


async def list_batches(exchange: Exchange) -> None:
    """GET /v1/batches"""
    assert exchange.principal is not None
    found = await exchange.services.batches.batches(exchange.principal)
    await exchange.respond(200, encode(page([batch_object(record) for record in found], exchange.query)))


async def retrieve_batch(exchange: Exchange) -> None:
    """GET /v1/batches/{id}"""
    assert exchange.principal is not None
    record = await exchange.services.batches.batch(exchange.principal, exchange.path_tail)
    await exchange.respond(200, encode(batch_object(record)))


async def cancel_batch(exchange: Exchange) -> None:
    """POST /v1/batches/{id}/cancel"""
    assert exchange.principal is not None
    record = await exchange.services.batches.cancel(exchange.principal, exchange.path_tail)
    await exchange.respond(200, encode(batch_object(record)))


def batch_object(record: BatchRecord) -> dict[str, Any]:
    """The files of answers are named once they are whole."""
    over = record.state.over
    errors = [{"code": e.code, "message": e.message, "param": e.param, "line": e.line} for e in record.errors]
    moments = {
        f"{state}_at": int(record.moments[state].timestamp()) if state in record.moments else None for state in _MOMENTS
    }
    return {
        "id": record.id,
        "object": "batch",
        "endpoint": record.endpoint,
        "errors": {"object": "list", "data": errors} if errors else None,
        "input_file_id": record.input_file_id,
        "completion_window": record.completion_window,
        "status": record.state,
        "output_file_id": record.output_file_id if over else None,
        "error_file_id": record.error_file_id if over else None,
        "created_at": int(record.created_at.timestamp()),
        "expires_at": int(record.expires_at.timestamp()),
        **moments,
        "request_counts": {"total": record.total, "completed": record.completed, "failed": record.failed},
        "metadata": record.metadata or None,
    }
