"""A line of a batch as a request of its own: the same handler as HTTP's, without a connection."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from daemon.api.errors import foreign_error, wire_error
from daemon.api.exchange import Exchange, RouteRefusal
from daemon.batches.run import LineAnswer
from daemon.tenants.principal import Principal
from engine.errors import (
    AdmissionError,
    BayardError,
    HardwareError,
    ModelNotFound,
    QuotaExceeded,
    WorkerLost,
    WorkerStalled,
)

if TYPE_CHECKING:
    from daemon.api.routes import RouteTable
    from daemon.api.services import Services

ORIGIN = "batch"
PAUSE_S = 5.0  # where an error does not say how long to wait
log = structlog.get_logger("bayard.batches")


class _Named(msgspec.Struct, frozen=True):
    model: str


_named = msgspec.json.Decoder(_Named)


class _Inside:
    """One ASGI exchange without a socket. Owner: one line."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self.status = 500
        self.chunks: list[bytes] = []

    async def receive(self) -> MutableMapping[str, Any]:
        """The body, and then nothing: this client never goes away; it is cancelled."""
        if self._body is None:
            await asyncio.Event().wait()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.chunks.append(message["body"])


class Asking:
    """Called with the principal, the path and the body of a line."""

    def __init__(self, services: Services, table: RouteTable) -> None:
        self._services = services
        self._table = table

    async def __call__(self, principal: Principal, path: str, body: bytes) -> LineAnswer:
        route = self._table.find("POST", path).route
        assert route is not None, "the endpoint was checked when the batch was made"
        inside = _Inside(body)
        scope = {"type": "http", "method": "POST", "path": path, "query_string": b"",
                 "headers": [(b"content-type", b"application/json")]}  # fmt: skip
        exchange = Exchange(scope, inside.receive, inside.send, self._services, principal=principal, origin=ORIGIN)
        try:
            await route.handler(exchange)
        except RouteRefusal as refusal:
            await exchange.refuse(refusal.wire)
        except BayardError as error:
            if (wait_s := self._retry_s(error, body)) is not None:
                return LineAnswer(503, exchange.request_id, b"{}", wait_s)
            await exchange.refuse(wire_error(error))
        except Exception:  # the border of a line, as HTTP's of a request: it ends here, and the batch's others go on
            log.exception("batch_line_broke", path=path, request_id=exchange.request_id)
        if not inside.chunks:
            await exchange.refuse(foreign_error())
        return LineAnswer(inside.status, exchange.request_id, b"".join(inside.chunks))

    def _retry_s(self, error: BayardError, body: bytes) -> float | None:
        """None: asking again would end the same."""
        if isinstance(error, ModelNotFound):  # another plan may load it, at night say
            asked = _named.decode(body).model
            return PAUSE_S if asked in self._services.router.imported() else None
        return _wait_s(error)


def _wait_s(error: BayardError) -> float | None:
    if isinstance(error, QuotaExceeded) and error.retry_after_s is None:
        return None
    if isinstance(error, AdmissionError | WorkerLost | WorkerStalled | HardwareError):
        return error.retry_after_s if error.retry_after_s is not None else PAUSE_S
    return None
