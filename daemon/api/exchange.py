"""Exchange: one HTTP request and its answer, above raw ASGI and below the contracts."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import msgspec

from daemon.api.body import decode_json_off_loop
from daemon.api.dialect import Dialect
from daemon.api.errors import WireError, route_error
from daemon.tenants.principal import Principal

if TYPE_CHECKING:
    from daemon.api.services import Services

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

JSON = (b"content-type", b"application/json")
BODY_CHUNK_TIMEOUT_S = 20.0
BODY_MIN_BYTES_S = 1024  # on average, after the first BODY_CHUNK_TIMEOUT_S
MAX_QUERY_FIELDS = 8192  # more than fit into a request's target
DISCARDED_BYTES = 16 << 20
DISCARD_TIMEOUT_S = 5.0


class RouteRefusal(Exception):
    """The transport itself refuses: wrong media type, too large, too slow."""

    def __init__(self, wire: WireError) -> None:
        super().__init__(wire.body["message"])
        self.wire = wire


class ClientGone(Exception):
    """The client closed before its request was complete; nobody is left to answer."""


@dataclass(slots=True)
class Exchange:
    """Mutable. Owner: one call of the application."""

    scope: Scope
    receive: Receive
    _send: Send
    services: Services
    principal: Principal | None = None
    origin: str = "http"  # "batch": a line of a batch
    path_tail: str = ""  # what follows the route's prefix, percent-decoded once
    request_id: str = field(default_factory=lambda: "req_" + secrets.token_hex(12))
    dialect: Dialect = Dialect.OPENAI  # of its errors
    always: tuple[tuple[bytes, bytes], ...] = ()  # headers of whatever the answer is
    status: int | None = None  # of the answer, once it has begun
    ended: bool = False
    _body_read: bool = False

    def header(self, name: bytes) -> bytes | None:
        for key, value in self.scope["headers"]:
            if key == name:
                return bytes(value)
        return None

    @property
    def query(self) -> dict[str, str]:
        """The query's fields; of one that is repeated, the last."""
        text = self.scope.get("query_string", b"").decode("latin-1")
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_QUERY_FIELDS, errors="replace"))

    async def read_json(self, decoder: msgspec.json.Decoder[Any], *, any_media_type: bool = False) -> Any:
        """The checked body. Raises: RouteRefusal, ClientGone, InvalidParameter"""
        if not any_media_type:
            self._check_media_type()
        return await decode_json_off_loop(await self._read_body(), decoder)

    async def respond(self, status: int, body: bytes, headers: tuple[tuple[bytes, bytes], ...] = (JSON,)) -> None:
        """A whole answer in one piece."""
        await self.begin(status, (*headers, (b"content-length", str(len(body)).encode())))
        if self.scope["method"] == "HEAD":
            body = b""
        self.ended = True
        await self._send({"type": "http.response.body", "body": body})

    async def begin(self, status: int, headers: tuple[tuple[bytes, bytes], ...]) -> None:
        self.status = status
        await self._send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [*headers, *self.always, *self._id_headers(), *self._rate_headers()],
            }
        )

    async def write(self, chunk: bytes, *, more: bool = True) -> None:
        self.ended = not more
        await self._send({"type": "http.response.body", "body": chunk, "more_body": more})

    async def refuse(self, wire: WireError) -> None:
        body = self.dialect.body(wire, self.request_id)
        await self.respond(self.dialect.status(wire), body, (JSON, *wire.headers))

    async def break_off(self, wire: WireError) -> None:
        """End a stream that has begun."""
        await self.write(self.dialect.stream_error(wire, self.request_id), more=False)

    async def closed_by_client(self) -> None:
        """Return when the client has gone. Only after the body was read."""
        while (await self.receive())["type"] != "http.disconnect":
            pass

    def _id_headers(self) -> list[tuple[bytes, bytes]]:
        """Under both names that clients look for."""
        value = self.request_id.encode()
        return [(b"x-request-id", value), (b"request-id", value)]

    def _rate_headers(self) -> list[tuple[bytes, bytes]]:
        """What is left of the tenant's rates, in OpenAI's words, where it has any."""
        if self.principal is None:
            return []
        headers: list[tuple[bytes, bytes]] = []
        for rate in self.services.tenants.admission.rates_of(self.principal):
            for name, value in (
                ("limit", str(rate.limit)),
                ("remaining", str(rate.remaining)),
                ("reset", duration(rate.reset_s)),
            ):
                headers.append((f"x-ratelimit-{name}-{rate.what}".encode(), value.encode()))
        return headers

    def _check_media_type(self) -> None:
        coding = (self.header(b"content-encoding") or b"identity").strip().lower()
        if coding != b"identity":
            shown = coding.decode("latin-1")[:64]
            raise RouteRefusal(
                route_error(415, "unsupported_media_type", f"The body must not be encoded; its encoding is {shown}.")
            )
        kind = (self.header(b"content-type") or b"").split(b";")[0].strip().lower()
        if kind != b"application/json" and not kind.endswith(b"+json"):
            shown = kind.decode("latin-1")[:64] or "none"
            raise RouteRefusal(
                route_error(415, "unsupported_media_type", f"The body must be application/json; its type is {shown}.")
            )

    async def _read_body(self) -> bytes:
        return b"".join([chunk async for chunk in self.chunks(self.services.settings.limits.max_body_bytes)])

    async def chunks(self, most: int) -> AsyncGenerator[bytes, None]:
        """The body as it comes, never more than most bytes of it. Raises: RouteRefusal, ClientGone"""
        told = self.header(b"content-length")
        if told is not None and told.isdigit() and int(told) > most:
            await self.discard()
            raise too_large(int(told), most)
        size = 0
        loop = asyncio.get_running_loop()
        began = loop.time()
        while True:
            slowest = began + BODY_CHUNK_TIMEOUT_S + size / BODY_MIN_BYTES_S
            try:
                async with asyncio.timeout_at(min(loop.time() + BODY_CHUNK_TIMEOUT_S, slowest)):
                    message = await self.receive()
            except TimeoutError:
                what = f"{size:,} bytes of the body came in {loop.time() - began:.0f} s; that is too slow."
                raise RouteRefusal(_closing(400, "body_timeout", what)) from None
            if message["type"] == "http.disconnect":
                raise ClientGone
            chunk = message.get("body", b"")
            size += len(chunk)
            if size > most:
                await self.discard()
                raise too_large(size, most)
            self._body_read = not message.get("more_body", False)
            yield chunk
            if self._body_read:
                return

    async def discard(self) -> None:
        """Read on for a bounded while: a client that is still sending would lose the answer to a reset."""
        if self._body_read:
            return
        left = DISCARDED_BYTES
        try:
            async with asyncio.timeout(DISCARD_TIMEOUT_S):
                while left > 0:
                    message = await self.receive()
                    left -= len(message.get("body", b""))
                    if message["type"] == "http.disconnect" or not message.get("more_body", False):
                        return
        except TimeoutError:
            return


def duration(seconds: float) -> str:
    """As OpenAI's clients read it: 12ms, 3s, 6m0s."""
    if seconds < 1.0:
        return f"{round(seconds * 1000)}ms"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"


def too_large(size: int, most: int) -> RouteRefusal:
    return RouteRefusal(
        _closing(413, "body_too_large", f"The body has {size:,} bytes or more; at most {most:,} are accepted.")
    )


def _closing(status: int, code: str, message: str) -> WireError:
    """The rest of the body is not wanted, so the connection ends with the answer."""
    wire = route_error(status, code, message)
    return WireError(wire.status, wire.body, ((b"connection", b"close"),))
