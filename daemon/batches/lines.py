"""The lines of a batch: what clients upload, checked as a whole before any of it runs, and what is written back."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from daemon.api.json_guard import check_json
from daemon.batches.records import LineError
from engine.errors import BayardError

MAX_LINE_BYTES = 8 << 20
MAX_ERRORS = 50  # told of one file


class RequestLine(msgspec.Struct, frozen=True, kw_only=True):
    custom_id: Annotated[str, Meta(min_length=1, max_length=512)]
    method: str
    url: str
    body: msgspec.Raw


class _BodyHead(msgspec.Struct, frozen=True):
    model: str
    stream: bool | None = None


class _Answered(msgspec.Struct, frozen=True):
    custom_id: str


_line_decoder = msgspec.json.Decoder(RequestLine)
_head_decoder = msgspec.json.Decoder(_BodyHead)
_answered_decoder = msgspec.json.Decoder(_Answered)
_encode = msgspec.json.Encoder().encode


def read_line(raw: bytes) -> RequestLine:
    """Of a file that was checked. Raises: msgspec.MsgspecError"""
    return _line_decoder.decode(raw)


def lines_of(path: Path) -> Iterator[tuple[int, bytes]]:
    """Each line that is not empty, with its number from 1. Blocks."""
    with path.open("rb") as file:
        for number, raw in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""), start=1):
            if line := raw.strip():
                yield number, line


def check_file(path: Path, endpoint: str, max_lines: int) -> tuple[int, list[LineError]]:
    """How many requests the file holds, and what is wrong with it. Blocks: in proportion to the file."""
    seen: set[str] = set()
    errors: list[LineError] = []
    total = 0
    for number, raw in lines_of(path):
        total += 1
        if total > max_lines:
            told = f"The file has more than {max_lines:,} requests."
            return total, [LineError("too_many_requests", told)]
        if (error := _check_line(number, raw, endpoint, seen)) is not None:
            errors.append(error)
            if len(errors) >= MAX_ERRORS:
                break
    if not total:
        errors.append(LineError("empty_file", "The file holds no request."))
    return total, errors


def answered_ids(path: Path) -> set[str]:
    """Which requests a file of answers has; one that was cut off in writing is taken away. Blocks. Mutates: the file"""
    found: set[str] = set()
    if not path.exists():
        return found
    whole = 0
    with path.open("rb+") as file:
        for raw in file:
            if not raw.endswith(b"\n"):
                break
            whole += len(raw)
            found.add(_answered_decoder.decode(raw).custom_id)
        file.truncate(whole)
    return found


def answer_line(custom_id: str, status: int, request_id: str, body: bytes) -> bytes:
    """body: JSON."""
    response = {"status_code": status, "request_id": request_id, "body": msgspec.Raw(body)}
    return _line(custom_id, response, None)


def lost_line(custom_id: str, code: str, message: str) -> bytes:
    """Of a request that was not run."""
    return _line(custom_id, None, {"code": code, "message": message})


def _line(custom_id: str, response: dict[str, Any] | None, error: dict[str, str] | None) -> bytes:
    told = {"id": "batch_req_" + secrets.token_hex(12), "custom_id": custom_id, "response": response, "error": error}
    return _encode(told) + b"\n"


def _check_line(number: int, raw: bytes, endpoint: str, seen: set[str]) -> LineError | None:
    if len(raw) > MAX_LINE_BYTES:
        return LineError("line_too_long", f"The line has more than {MAX_LINE_BYTES:,} bytes.", number)
    try:
        check_json(raw)
        line = _line_decoder.decode(raw)
        head = _head_decoder.decode(line.body)
    except BayardError as error:
        return LineError("invalid_json_line", error.message, number)
    except msgspec.MsgspecError as error:
        return LineError("invalid_request", f"{error}", number)
    if line.method != "POST":
        return LineError("invalid_method", f"method is {line.method[:16]!r}; it must be POST.", number, "method")
    if line.url != endpoint:
        told = f"url is {line.url[:64]!r}; the batch is for {endpoint}."
        return LineError("invalid_url", told, number, "url")
    if head.stream:
        return LineError("invalid_request", "stream has no meaning in a batch.", number, "body.stream")
    if line.custom_id in seen:
        told = f"custom_id {line.custom_id[:64]!r} appears twice."
        return LineError("duplicate_custom_id", told, number, "custom_id")
    seen.add(line.custom_id)
    return None
