"""How many streamed tokens a second a server delivers to many clients: the whole way but the model.

    python -m bench.streams --url http://127.0.0.1:8080 --key KEY --model NAME --clients 256 --tokens 300

Speaks plain HTTP over bare sockets, so that the client costs little beside the server it measures. Against a worker
without a model (tests.fakes.fake_worker) it tells what the daemon itself can carry. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

READ_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class StreamResult:
    chunks: int
    first_s: float
    complete: bool  # ended with [DONE]


async def one_stream(host: str, port: int, request: bytes) -> StreamResult:
    """Send the request and read its stream to the end."""
    started = time.monotonic()
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(request)
    chunks, tail, first_s = 0, b"", 0.0
    while b"data: [DONE]" not in tail and (data := await reader.read(READ_BYTES)):
        first_s = first_s or time.monotonic() - started
        chunks += data.count(b"data: ")
        tail = (tail + data)[-64:]
    writer.close()
    return StreamResult(chunks, first_s, b"data: [DONE]" in tail)


def request_bytes(url: str, key: str, model: str, tokens: int) -> bytes:
    body = json.dumps(
        {
            "model": model,
            "messages": [{"role": "user", "content": "hi"}],
            "stream": True,
            "max_tokens": tokens,
            "ignore_eos": True,
        }
    ).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {urlsplit(url).netloc}\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def measure(url: str, key: str, model: str, clients: int, tokens: int) -> dict[str, float | int | str]:
    """One round of all clients at once."""
    parts = urlsplit(url)
    request = request_bytes(url, key, model, tokens)
    started = time.monotonic()
    results = await asyncio.gather(
        *(one_stream(parts.hostname or "127.0.0.1", parts.port or 80, request) for _ in range(clients))
    )
    elapsed_s = time.monotonic() - started
    complete = sum(result.complete for result in results)
    return {
        "clients": clients,
        "tokens_each": tokens,
        "complete": complete,
        "elapsed_s": round(elapsed_s, 3),
        "streamed_tok_s": round(complete * tokens / elapsed_s),
        "chunks": sum(result.chunks for result in results),
        "first_byte_p50_s": round(statistics.median(result.first_s for result in results), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--key", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--clients", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    rounds = [
        asyncio.run(measure(asked.url, asked.key, asked.model, asked.clients, asked.tokens))
        for _ in range(asked.rounds)
    ]
    print(json.dumps(max(rounds, key=lambda one: one["streamed_tok_s"]) | {"best_of": len(rounds)}))


if __name__ == "__main__":
    main()
