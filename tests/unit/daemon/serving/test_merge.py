"""Streams merged into one: whatever ends one of them is known at once, and nothing of the others is left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

import pytest

from daemon.serving.merge import merge
from engine.messages import FinishReason, TokenDelta

Stream = AsyncIterator[TokenDelta]


async def broken(after: int) -> Stream:
    for number in range(after):
        yield TokenDelta("broken", [number])
    raise OverflowError("no message can hold it")


async def ended_without_a_word() -> Stream:
    yield TokenDelta("short", [1])


class Held:
    """Gives one token, and no more until it is closed."""

    def __init__(self) -> None:
        self.closed = False

    async def run(self) -> AsyncGenerator[TokenDelta, None]:
        try:
            yield TokenDelta("held", [1])
            await asyncio.Event().wait()
        finally:
            self.closed = True


@pytest.mark.parametrize("after", [0, 2])
async def test_stream_that_raises_ends_the_merge_and_closes_the_others(after: int) -> None:
    held = [Held(), Held()]
    seen: list[TokenDelta] = []

    async def read() -> None:
        async for _, delta in merge([held[0].run(), broken(after), held[1].run()]):
            seen.append(delta)

    with pytest.raises(OverflowError, match="no message"):
        await asyncio.wait_for(read(), 5)
    assert len([delta for delta in seen if delta.request_id == "broken"]) == after
    assert [one.closed for one in held] == [True, True]


async def test_stream_that_ends_without_a_finish_is_not_waited_for() -> None:
    async def whole() -> Stream:
        yield TokenDelta("whole", [2], finish=FinishReason.STOP)

    async with asyncio.timeout(5):
        assert len([delta async for delta in merge([ended_without_a_word(), whole()])]) == 2
