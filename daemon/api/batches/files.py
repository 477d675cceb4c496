"""The handlers of /v1/files."""

from __future__ import annotations

import asyncio
from typing import Any

from daemon.api.batches.pages import page
from daemon.api.batches.upload import Upload, whole_number
from daemon.api.exchange import Exchange
from daemon.api.openai.reply import encode
from daemon.batches.desk import LONGEST_EXPIRY_S, PURPOSE, SHORTEST_EXPIRY_S, BatchDesk
from daemon.batches.records import FileRecord
from engine.errors import BayardError, InvalidParameter, NotFound, StoreError

READ_BYTES = 256 << 10
FRAME_BYTES = 64 << 10  # beyond the file itself: boundaries and fields
_FIELDS = frozenset({"purpose", "expires_after[anchor]", "expires_after[seconds]"})
JSON_LINES = (b"content-type", b"application/jsonl")


async def upload(exchange: Exchange) -> None:
    """POST /v1/files"""
    desk, principal = exchange.services.batches, exchange.principal
    assert principal is not None
    file_id = desk.shelf.new_id()
    told = exchange.header(b"content-length")
    try:
        form = Upload(exchange.header(b"content-type"), lambda data: _append(desk, file_id, data))
        await desk.check_room(principal, int(told) if told is not None and told.isdigit() else 0)
        async for chunk in exchange.chunks(desk.settings.max_file_bytes + FRAME_BYTES):
            await form.feed(chunk)
        await form.finish()
        expires_after_s = _expires_after_s(form.fields)
        filename = form.filename or "upload.jsonl"
        record = await desk.add_file(principal, file_id, form.fields.get("purpose", ""), filename, expires_after_s)
    except BaseException as error:  # nothing of a failed upload stays
        await asyncio.shield(asyncio.to_thread(desk.shelf.remove, file_id))
        if isinstance(error, BayardError):
            await exchange.discard()
        raise
    await exchange.respond(200, encode(file_object(record)))


async def list_files(exchange: Exchange) -> None:
    """GET /v1/files"""
    assert exchange.principal is not None
    purpose = exchange.query.get("purpose")
    found = await exchange.services.batches.files(exchange.principal)
    shown = [record for record in found if purpose in (None, record.purpose)]
    shown.reverse()
    await exchange.respond(200, encode(page([file_object(record) for record in shown], exchange.query)))


async def retrieve_file(exchange: Exchange) -> None:
    """GET /v1/files/{id}"""
    assert exchange.principal is not None
    record = await exchange.services.batches.file(exchange.principal, exchange.path_tail)
    await exchange.respond(200, encode(file_object(record)))


async def delete_file(exchange: Exchange) -> None:
    """DELETE /v1/files/{id}"""
    assert exchange.principal is not None
    await exchange.services.batches.delete_file(exchange.principal, exchange.path_tail)
    await exchange.respond(200, encode({"id": exchange.path_tail, "object": "file", "deleted": True}))


async def file_content(exchange: Exchange) -> None:
    """GET /v1/files/{id}/content"""
    assert exchange.principal is not None
    desk = exchange.services.batches
    record = await desk.file(exchange.principal, exchange.path_tail)
    left = record.size_bytes
    length = (b"content-length", str(left).encode())
    try:
        file = await asyncio.to_thread(desk.shelf.path(record.id).open, "rb")
    except FileNotFoundError:
        raise NotFound(f"The content of the file {record.id} is gone.", param="id") from None
    try:
        await exchange.begin(200, (JSON_LINES, length))
        if exchange.scope["method"] == "HEAD":
            left = 0
        while left > 0:
            data = await asyncio.to_thread(file.read, min(READ_BYTES, left))
            if not data:  # it was cut from outside; the connection's end tells it
                break
            left -= len(data)
            await exchange.write(data)
        await exchange.write(b"", more=False)
    finally:
        file.close()


def _append(desk: BatchDesk, file_id: str, data: bytes) -> None:
    try:
        desk.shelf.append(file_id, data)
    except OSError as error:
        raise StoreError(
            f"The file cannot be written: {error.strerror or error}.", "An operator has to look at the disk."
        ) from error


def file_object(record: FileRecord) -> dict[str, Any]:
    return {
        "id": record.id,
        "object": "file",
        "bytes": record.size_bytes,
        "created_at": int(record.created_at.timestamp()),
        "expires_at": int(record.expires_at.timestamp()),
        "filename": record.filename,
        "purpose": record.purpose,
        "status": "processed",
        "status_details": None,
    }


def _expires_after_s(fields: dict[str, str]) -> int | None:
    odd = sorted(fields.keys() - _FIELDS)
    if odd:
        raise InvalidParameter(f"The field {odd[0][:64]!r} is not supported.", "Remove it.", param=odd[0][:64])
    if "purpose" not in fields:
        raise InvalidParameter("The field 'purpose' is required.", f"Send {PURPOSE!r}.", param="purpose")
    seconds = whole_number(fields, "expires_after[seconds]")
    if fields.get("expires_after[anchor]", "created_at") != "created_at":
        raise InvalidParameter("expires_after.anchor must be created_at.", param="expires_after")
    if seconds is not None and not SHORTEST_EXPIRY_S <= seconds <= LONGEST_EXPIRY_S:
        raise InvalidParameter(
            f"expires_after.seconds is {seconds:,}; it must be {SHORTEST_EXPIRY_S:,} to {LONGEST_EXPIRY_S:,}.",
            param="expires_after",
        )
    return seconds
