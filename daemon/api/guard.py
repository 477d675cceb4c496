"""GuardedProtocol: uvicorn's HTTP protocol with bounds on a request's head, in bytes, in number and in time.

What is bounded here would otherwise be buffered before any application sees the request.
"""

from __future__ import annotations

import asyncio
from typing import ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from daemon.api.connections import Connections
from daemon.api.errors import WireError, route_error

MAX_TARGET_BYTES = 8 << 10
MAX_HEAD_BYTES = 40 << 10  # target and headers together
MAX_HEADERS = 100
HEAD_TIMEOUT_S = 10.0
_REASONS = {400: "Bad Request", 431: "Request Header Fields Too Large", 503: "Service Unavailable"}


class HeadRefused(Exception):
    """Leaves the parser's callback, so that it stops there."""


class GuardedProtocol(HttpToolsProtocol):
    """For the public HTTP server. A head that is not complete within head_timeout_s costs its connection.

    bound: what all connections of one server share; `guarded` makes the class with it.
    """

    head_timeout_s = HEAD_TIMEOUT_S
    bound: ClassVar[Connections | None] = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._in_head = True  # before the first request too: a silent connection is no better
        self._head_bytes = 0
        self._refusal: WireError | None = None
        self._head_timer: asyncio.TimerHandle | None = None
        if self.bound is not None and not self.bound.made(self):
            self._refusal = route_error(503, "too_many_connections", f"All {self.bound.most:,} connections are in use.")
            self.send_400_response("")
            return
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        if self.bound is not None:
            self.bound.lost(self)
        super().connection_lost(exc)

    def close_idle(self) -> None:
        """Make room for another; no request is under way here."""
        self.transport.close()

    def data_received(self, data: bytes) -> None:
        self._head_bytes += len(data)
        super().data_received(data)
        # A single endless header reaches no callback, so the bytes themselves are counted too.
        if self._in_head and self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refusal = _too_large(f"The head of the request has more than {MAX_HEAD_BYTES:,} bytes.")
            self.send_400_response("")

    def on_message_begin(self) -> None:
        self._expect_head()
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        if len(self.url) + len(url) > MAX_TARGET_BYTES:
            self._refuse(f"The request target has more than {MAX_TARGET_BYTES:,} bytes.")
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self.headers) >= MAX_HEADERS:
            self._refuse(f"There are more than {MAX_HEADERS} headers.")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop_timer()
        if self.bound is not None:
            self.bound.busy(self)
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        if self.bound is not None and not self.pipeline:
            self.bound.idle_again(self)
        super().on_response_complete()

    def on_message_complete(self) -> None:
        self._head_bytes = 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, or no acceptable head, in the shape of every other error."""
        wire = self._refusal or route_error(400, "invalid_http", msg)
        body = wire.encode()
        head = (
            f"HTTP/1.1 {wire.status} {_REASONS[wire.status]}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()

    def _expect_head(self) -> None:
        self._in_head = True
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_timeout_s, self.transport.close)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse(self, message: str) -> None:
        self._refusal = _too_large(message)
        raise HeadRefused(message)


def guarded(bound: Connections) -> type[GuardedProtocol]:
    """The protocol of one server, whose connections share this bound."""
    return type("BoundProtocol", (GuardedProtocol,), {"bound": bound})


def _too_large(message: str) -> WireError:
    return route_error(431, "headers_too_large", message)
