"""Several engine streams as one, each delta with the number of its choice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager

from engine.messages import TokenDelta


async def merge(streams: Sequence[AsyncIterator[TokenDelta]]) -> AsyncGenerator[tuple[int, TokenDelta], None]:
    """Ends when all have ended. Leaving early closes every stream, which aborts its request."""
    queue: asyncio.Queue[tuple[int, TokenDelta]] = asyncio.Queue()
    tasks = [asyncio.create_task(_pump(index, stream, queue)) for index, stream in enumerate(streams)]
    open_streams = len(tasks)
    try:
        while open_streams:
            index, delta = await queue.get()
            if delta.finish is not None:
                open_streams -= 1
            yield index, delta
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(index: int, stream: AsyncIterator[TokenDelta], queue: asyncio.Queue[tuple[int, TokenDelta]]) -> None:
    async with closing_stream(stream):
        async for delta in stream:
            queue.put_nowait((index, delta))


@asynccontextmanager
async def closing_stream(stream: AsyncIterator[TokenDelta]) -> AsyncGenerator[AsyncIterator[TokenDelta], None]:
    """Close the stream when left, so that an unfinished request is aborted now and not when memory is tidied."""
    try:
        yield stream
    finally:
        close = getattr(stream, "aclose", None)
        if close is not None:
            await close()
