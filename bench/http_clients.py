"""Clients that cost little themselves: one chat stream each over a plain socket, counted by its bytes."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

from bench.box import MODEL
from bench.percentile import percentile as percentile


@dataclass(frozen=True, slots=True)
class Stream:
    """What one request got. ttft_s None: it got no token."""

    status: int
    tokens: int
    ttft_s: float | None
    total_s: float
    whole: bool


def chat_request(key: str, max_tokens: int, *, close: bool = True, text: str = "Hello") -> bytes:
    """A streamed chat request as bytes."""
    body = json.dumps(
        {
            "model": MODEL, "stream": True, "max_tokens": max_tokens, "stream_options": {"include_usage": True},
            "messages": [{"role": "user", "content": text}],
        }
    ).encode()  # fmt: skip
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n{'connection: close' if close else ''}"
    ).rstrip()
    return head.encode() + b"\r\n\r\n" + body


async def stream(url: str, request: bytes, source: str | None = None) -> Stream:
    """Send it on a connection of its own, from the address `source` if named, and read to the end."""
    where = urlsplit(url)
    begun = time.monotonic()
    try:
        local = (source, 0) if source is not None else None
        reader, writer = await asyncio.open_connection(where.hostname, where.port, local_addr=local)
    except OSError:
        return Stream(0, 0, None, time.monotonic() - begun, False)
    ttft_s: float | None = None
    tail = b""
    status = 0
    try:
        writer.write(request)
        while data := await reader.read(1 << 16):
            if not status:
                status = int(data.split(b" ", 2)[1])
            if ttft_s is None and b'"content":"' in data.replace(b'"content":""', b""):
                ttft_s = time.monotonic() - begun
            tail = (tail + data)[-2000:]
    except OSError:
        pass  # the server went away; what came counts
    finally:
        writer.close()
    return Stream(status, _tokens(tail), ttft_s, time.monotonic() - begun, b"data: [DONE]" in tail)


def _tokens(tail: bytes) -> int:
    _, found, rest = tail.rpartition(b'"completion_tokens":')
    return int(rest.split(b",", 1)[0].split(b"}", 1)[0]) if found else 0
