"""Several engine streams as one, each delta with the number of its choice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager

from engine.messages import TokenDelta


async def merge(streams: Sequence[AsyncIterator[TokenDelta]]) -> AsyncGenerator[tuple[int, TokenDelta], None]:
    """Ends when all have ended. Leaving early closes every stream, which aborts its request.

    Raises: what the first of them raised that did; the others are closed
    """
    queue: asyncio.Queue[tuple[int, TokenDelta] | asyncio.Task[None]] = asyncio.Queue()
    tasks = [asyncio.create_task(_pump(index, stream, queue)) for index, stream in enumerate(streams)]
    for task in tasks:
        task.add_done_callback(queue.put_nowait)
    open_streams = len(tasks)
    try:
        while open_streams:
            told = await queue.get()
            if isinstance(told, asyncio.Task):
                open_streams -= 1
                told.result()
            else:
                yield told
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(
    index: int, stream: AsyncIterator[TokenDelta], queue: asyncio.Queue[tuple[int, TokenDelta] | asyncio.Task[None]]
) -> None:
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
