"""Rules of every admin answer: ETags, If-Match for what changed meanwhile, Idempotency-Key for what was sent twice.

An ETag is "VERSION.CONTENT": VERSION covers what a person decides by and leaves out figures that always move, CONTENT
covers all but the clock. If-None-Match compares the whole, If-Match the version alone.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from daemon.api.admin.answers import error_answer
from engine.errors import BayardError, Changed, InvalidParameter

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

KEPT_ANSWERS = 500
KEPT_S = 600.0  # a key's secret may be among them
MAX_BODY_BYTES = 1 << 20
MAX_TAGGED_BYTES = 4 << 20
_MOVING = frozenset(
    {
        "as_of", "age_s", "cpu_used", "first_token_s", "in_flight", "inter_token_s", "kv_pages_active",
        "kv_pages_cached", "last_used_at", "load_done_bytes", "memory_available_bytes", "memory_bytes",
        "memory_used_bytes", "output_tokens", "power_w", "quotas", "requests_running", "requests_waiting",
        "retry_in_s", "running", "step_age_s", "temperature_c", "uptime_s", "utilisation_percent",
    }
)  # fmt: skip


@dataclass(slots=True)
class _Answer:
    status: int = 0
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""

    async def send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status, "headers": self.headers})
        await send({"type": "http.response.body", "body": self.body})


@dataclass(slots=True)
class _Kept:
    request: bytes
    answer: asyncio.Future[_Answer]
    at_mono: float


class WriteRules:
    """Around the admin application. Owner: its server."""

    def __init__(self, app: App, clock: Callable[[], float] = time.monotonic) -> None:
        self._app = app
        self._clock = clock
        self._kept: OrderedDict[tuple[str, bytes], _Kept] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif scope["method"] in ("GET", "HEAD"):
            await self._get(scope, receive, send)
        else:
            try:
                await self._write(scope, receive, send)
            except BayardError as error:
                await _error(error).send(send)

    async def _get(self, scope: Scope, receive: Receive, send: Send) -> None:
        tagger = _Tagger(send, _header(scope, b"if-none-match"))
        await self._app(scope, receive, tagger)

    async def _write(self, scope: Scope, receive: Receive, send: Send) -> None:
        wanted = _header(scope, b"if-match")
        if wanted is not None and wanted != b"*":
            await self._require_version(scope, wanted)
        key = _header(scope, b"idempotency-key")
        if key is None:
            await self._app(scope, receive, send)
            return
        if not 1 <= len(key) <= 200:
            raise InvalidParameter("Idempotency-Key has to have 1 to 200 characters.", param="Idempotency-Key")
        body = await _body(receive)
        await (await self._once(scope, key, body)).send(send)

    async def _once(self, scope: Scope, key: bytes, body: bytes) -> _Answer:
        """The first answer to this key; what comes meanwhile waits for it. A failure of ours is not kept."""
        self._forget_old()
        client = scope.get("client")
        who = (str(client[0]) if client else "", key)
        target = scope["method"].encode() + b" " + scope["path"].encode() + b"?" + scope.get("query_string", b"")
        request = hashlib.sha256(target + b"\n" + body).digest()
        kept = self._kept.get(who)
        if kept is not None:
            if kept.request != request:
                raise InvalidParameter(
                    "This Idempotency-Key was used for another request.", "Use a new one.", param="Idempotency-Key"
                )
            return await asyncio.shield(kept.answer)
        kept = _Kept(request, asyncio.get_running_loop().create_future(), self._clock())
        self._kept[who] = kept
        try:
            answer = await self._collect(scope, body)
        except BaseException as error:
            del self._kept[who]
            kept.answer.set_exception(error)
            kept.answer.exception()  # it is raised here; that nobody else waited is no fault
            raise
        kept.answer.set_result(answer)
        if answer.status >= 500:
            del self._kept[who]
        return answer

    async def _require_version(self, scope: Scope, wanted: bytes) -> None:
        """Raises: Changed, unless the subject is as If-Match says: the nearest path above that can be read."""
        path: str = scope["path"]
        while path.count("/") > 2:
            found = await self._collect(
                {**scope, "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b"",
                 "headers": [pair for pair in scope["headers"] if pair[0] == b"authorization"]},
                b"",
            )  # fmt: skip
            if found.status == 200:
                tag = tag_of(found.body)
                if _version(tag) not in {_version(one) for one in _tags(wanted)}:
                    raise Changed(
                        f"{path} is at version {_version(tag).decode()}, not at {wanted.decode('latin-1')[:100]}.",
                        "Read it again, and decide again.",
                    )
                return
            path = path.rpartition("/")[0]
        raise Changed(f"Nothing at {scope['path']} can be compared with If-Match.", "Leave If-Match out.")

    async def _collect(self, scope: Scope, body: bytes) -> _Answer:
        answer = _Answer()
        sent = False

        async def receive() -> Message:
            nonlocal sent
            if sent:
                return {"type": "http.disconnect"}
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer.status, answer.headers = message["status"], list(message.get("headers", []))
            else:
                answer.body += message.get("body", b"")

        await self._app(scope, receive, send)
        return answer

    def _forget_old(self) -> None:
        now = self._clock()
        while self._kept:
            oldest = next(iter(self._kept.values()))
            if len(self._kept) <= KEPT_ANSWERS and now - oldest.at_mono <= KEPT_S:
                return
            self._kept.popitem(last=False)


class _Tagger:
    """Holds a JSON answer back until it is whole and can be tagged; anything else passes through at once."""

    def __init__(self, send: Send, none_match: bytes | None) -> None:
        self._send = send
        self._none_match = none_match
        self._held: _Answer | None = None

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", []))
            if message["status"] == 200 and dict(headers).get(b"content-type", b"").startswith(b"application/json"):
                self._held = _Answer(200, headers)
            else:
                await self._send(message)
            return
        held = self._held
        if held is None:
            await self._send(message)
            return
        held.body += message.get("body", b"")
        if message.get("more_body", False) and len(held.body) <= MAX_TAGGED_BYTES:
            return
        self._held = None
        if not message.get("more_body", False):
            tag = tag_of(held.body)
            held.headers.append((b"etag", tag))
            if self._none_match is not None and tag in _tags(self._none_match):
                kept = [pair for pair in held.headers if pair[0] not in (b"content-length", b"content-type")]
                held = _Answer(304, kept)
        await held.send(self._send)


def tag_of(body: bytes) -> bytes:
    """The ETag of a JSON answer."""
    try:
        content = msgspec.json.decode(body)
    except msgspec.DecodeError:
        content = body.decode("latin-1")
    steady = _hash(_without(content, _MOVING))
    return b'"' + steady + b"." + _hash(_without(content, frozenset({"as_of"}))) + b'"'


def _without(value: Any, names: frozenset[str]) -> Any:
    if isinstance(value, dict):
        return {key: _without(inner, names) for key, inner in value.items() if key not in names}
    if isinstance(value, list):
        return [_without(inner, names) for inner in value]
    return value


def _hash(value: Any) -> bytes:
    return hashlib.sha256(msgspec.json.encode(value, order="sorted")).hexdigest()[:16].encode()


def _tags(header: bytes) -> list[bytes]:
    return [one.strip().removeprefix(b"W/") for one in header.split(b",")]


def _version(tag: bytes) -> bytes:
    return tag.strip(b'"').partition(b".")[0]


def _header(scope: Scope, name: bytes) -> bytes | None:
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value)
    return None


async def _body(receive: Receive) -> bytes:
    chunks: list[bytes] = []
    while True:
        message = await receive()
        chunks.append(message.get("body", b""))
        if sum(map(len, chunks)) > MAX_BODY_BYTES:
            raise InvalidParameter(f"The body has more than {MAX_BODY_BYTES:,} bytes.")
        if not message.get("more_body", False):
            return b"".join(chunks)


def _error(error: BayardError) -> _Answer:
    response = error_answer(error.http_status, error.code, error.message, error.hint, error.param)
    return _Answer(response.status_code, list(response.raw_headers), bytes(response.body))
