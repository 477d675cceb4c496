"""Dialect: the shape in which a route tells its errors, as the clients of its contract read them."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from daemon.api.errors import WireError

OVERLOADED = 529
_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    415: "invalid_request_error",
    429: "rate_limit_error",
    OVERLOADED: "overloaded_error",
}


class Dialect(StrEnum):
    OPENAI = "openai"  # {"error": {"message", "type", "param", "code"}}
    ANTHROPIC = "anthropic"  # {"type": "error", "error": {"type", "message"}, "request_id"}; 529 for 503
    OLLAMA = "ollama"  # {"error": "..."}

    def status(self, wire: WireError) -> int:
        return OVERLOADED if self is Dialect.ANTHROPIC and wire.status == 503 else wire.status

    def body(self, wire: WireError, request_id: str) -> bytes:
        message = wire.body["message"]
        if self is Dialect.ANTHROPIC:
            kind = _ANTHROPIC_TYPES.get(self.status(wire), "api_error")
            error = {"type": kind, "message": message, "code": wire.body["code"], "param": wire.body["param"]}
            return msgspec.json.encode({"type": "error", "error": error, "request_id": request_id})
        if self is Dialect.OLLAMA:
            return msgspec.json.encode({"error": message})
        return wire.encode()

    def stream_error(self, wire: WireError, request_id: str) -> bytes:
        """The same as the last event of a stream that has begun."""
        body = self.body(wire, request_id)
        match self:
            case Dialect.ANTHROPIC:
                return b"event: error\ndata: " + body + b"\n\n"
            case Dialect.OLLAMA:
                return body + b"\n"
            case _:
                return b"data: " + body + b"\n\n"


def dialect_of(path: str, *, speaks_anthropic: bool) -> Dialect:
    """speaks_anthropic: the request names a version of that contract, on a path that both share."""
    if path.startswith("/api/"):
        return Dialect.OLLAMA
    if speaks_anthropic or path.startswith("/v1/messages"):
        return Dialect.ANTHROPIC
    return Dialect.OPENAI
