"""How errors look on the wire: the OpenAI error object, its status and its headers.

A BayardError is shown as it is; anything else becomes one constant sentence, so that no trace ever leaves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec

from engine.errors import BayardError

Headers = list[tuple[bytes, bytes]]

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    431: "invalid_request_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}
_DEFAULT_RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class WireError:
    """An error ready to be written: status, the object under the key `error`, extra headers."""

    status: int
    body: dict[str, str | None]
    headers: tuple[tuple[bytes, bytes], ...] = ()

    def encode(self) -> bytes:
        return msgspec.json.encode({"error": self.body})


def wire_error(error: BayardError) -> WireError:
    """The OpenAI form of an error of our own tree."""
    status = error.http_status
    headers: Headers = []
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if status in (429, 503):
        wait_s = error.retry_after_s if error.retry_after_s is not None else _DEFAULT_RETRY_S
        headers.append((b"retry-after", str(max(1, math.ceil(wait_s))).encode()))
        headers.append((b"retry-after-ms", str(max(1, math.ceil(wait_s * 1000))).encode()))
    return _build(status, sentence(error), error.code, error.param, tuple(headers))


def route_error(
    status: int, code: str, message: str, *, param: str | None = None, allow: tuple[str, ...] = ()
) -> WireError:
    """An error of the transport itself: no such route, method, size or media type."""
    headers = ((b"allow", ", ".join(allow).encode()),) if allow else ()
    return _build(status, message, code, param, headers)


def foreign_error() -> WireError:
    """What a client sees of a fault that is ours: a constant, and nothing of the inside."""
    return _build(
        500, "Bayard failed on this request; the daemon's log names it by its request id.", "internal_error", None, ()
    )


def sentence(error: BayardError) -> str:
    """Message and hint as one text."""
    return f"{error.message} {error.hint}".strip()


def error_type(status: int) -> str:
    return _TYPES.get(status, "server_error")


def _build(
    status: int, message: str, code: str, param: str | None, headers: tuple[tuple[bytes, bytes], ...]
) -> WireError:
    body: dict[str, str | None] = {"message": message, "type": error_type(status), "param": param, "code": code}
    return WireError(status, body, headers)
