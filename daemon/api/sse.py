"""Streams of an answer: server-sent events as every tested client survives them, or lines of JSON.

One keeper task for all streams comments into silent ones and drops those whose reader has stopped reading.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import structlog

from daemon.api.exchange import Exchange

Headers = tuple[tuple[bytes, bytes], ...]
HEADERS: Headers = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
LINES = ((b"content-type", b"application/x-ndjson"), *HEADERS[1:])  # JSON, one object a line; there are no comments
COMMENT = b": ka\n\n"
DONE = b"data: [DONE]\n\n"
COMMENT_AFTER_S = 10.0
PROGRESS_AFTER_S = 2.0  # ... of a stream whose model is being loaded
STALLED_AFTER_S = 30.0
log = structlog.get_logger(__name__)


class SseStream:
    """One answer as a stream. Begins with the first write, so that earlier failures keep their status."""

    def __init__(
        self, exchange: Exchange, drop: Callable[[], object], headers: Headers = HEADERS, *, comments: bool = True
    ) -> None:
        self._exchange = exchange
        self._drop = drop
        self._headers = headers
        self._comments = comments
        self._lock = asyncio.Lock()
        self._ended = False
        self._written_mono = time.monotonic()
        self._writing_since_mono: float | None = None
        self._waiting = ""

    @property
    def begun(self) -> bool:
        return self._exchange.status is not None

    async def write(self, data: bytes, *, last: bool = False) -> None:
        """Blocks: while the client's buffers are full."""
        async with self._lock:
            if not self._ended:
                await self._put(data, last)

    async def _put(self, data: bytes, last: bool) -> None:
        self._ended = last
        self._writing_since_mono = time.monotonic()
        try:
            if not self.begun:
                await self._exchange.begin(200, self._headers)
            await self._exchange.write(data, more=not last)
        finally:
            self._writing_since_mono = None
            self._written_mono = time.monotonic()

    def stalled(self, now_mono: float, after_s: float) -> bool:
        """Whether the client has left one write waiting for so long."""
        return self._writing_since_mono is not None and now_mono - self._writing_since_mono > after_s

    def waits_for(self, told: str) -> None:
        """What the answer waits for before it can begin; "" when it waits no more."""
        self._waiting = told

    def silent(self, now_mono: float, after_s: float) -> bool:
        """Whether a comment is due; sooner where there is something to tell."""
        due_s = min(after_s, PROGRESS_AFTER_S) if self._waiting else after_s
        return self._comments and not self._lock.locked() and now_mono - self._written_mono > due_s

    @property
    def comment(self) -> bytes:
        """What goes into a silent stream."""
        return f": {' '.join(self._waiting.split())}\n\n".encode() if self._waiting else COMMENT

    def drop(self) -> None:
        """Give the client up."""
        log.warning("reader_stalled", request_id=self._exchange.request_id)
        self._drop()


class StreamKeeper:
    """Owner: the application. Its task lives while there are streams."""

    def __init__(self, comment_after_s: float = COMMENT_AFTER_S, stalled_after_s: float = STALLED_AFTER_S) -> None:
        self.comment_after_s = comment_after_s
        self.stalled_after_s = stalled_after_s
        self._streams: set[SseStream] = set()
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._streams)

    def add(self, stream: SseStream) -> None:
        self._streams.add(stream)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="stream-keeper")

    def remove(self, stream: SseStream) -> None:
        self._streams.discard(stream)
        if not self._streams and self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        tick_s = min(1.0, self.comment_after_s / 4, self.stalled_after_s / 4)
        writing: set[asyncio.Task[None]] = set()  # a comment may find the buffers full just then
        while True:
            await asyncio.sleep(tick_s)
            now = time.monotonic()
            for stream in self._streams:
                if stream.stalled(now, self.stalled_after_s):
                    stream.drop()
                elif stream.silent(now, self.comment_after_s):
                    task = asyncio.create_task(stream.write(stream.comment))
                    writing.add(task)
                    task.add_done_callback(writing.discard)
