"""One flow for every contract that is not OpenAI's: open, write events as they come or one answer, end once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from daemon.api.errors import wire_error
from daemon.api.exchange import Exchange
from daemon.api.openai.handlers import until_client_gone
from daemon.api.sse import HEADERS, Headers, SseStream, StreamKeeper
from daemon.serving.events import Event, Failed, Finished, TokenUsage
from daemon.serving.generation import Generation
from daemon.serving.request import GenerationRequest
from daemon.serving.waiting import OnWait, unheard
from engine.errors import BayardError


class StreamWriter(Protocol):
    """An answer in pieces. Owner: one handler."""

    def take(self, event: Event) -> bytes:
        """What to write now; may be nothing. Never Failed or Finished."""

    def finished(self, usage: TokenUsage) -> bytes:
        """The end."""


class Collector(Protocol):
    """An answer in one piece. Owner: one handler."""

    def take(self, event: Event) -> None: ...

    def encode(self, usage: TokenUsage) -> bytes: ...


Translate = Callable[[BayardError], BayardError]


def as_it_is(error: BayardError) -> BayardError:
    return error


async def answer_whole(
    exchange: Exchange, request: GenerationRequest, make: Callable[[Generation], Collector], say: Translate = as_it_is
) -> None:
    """say: how the contract names what another's field was called. Raises: BayardError"""
    await until_client_gone(exchange, _whole(exchange, request, make, say))


async def answer_stream(
    exchange: Exchange,
    keeper: StreamKeeper,
    request: GenerationRequest,
    make: Callable[[Generation], StreamWriter],
    say: Translate = as_it_is,
    headers: Headers = HEADERS,
) -> None:
    """Nothing is written before the first event, so that what fails earlier keeps its status. Raises: BayardError"""
    await until_client_gone(exchange, _stream(exchange, keeper, request, make, say, headers))


async def _open(exchange: Exchange, request: GenerationRequest, on_wait: OnWait = unheard) -> Generation:
    assert exchange.principal is not None
    return await exchange.services.serving.open(request, exchange.principal, origin=exchange.origin, on_wait=on_wait)


async def _whole(
    exchange: Exchange, request: GenerationRequest, make: Callable[[Generation], Collector], say: Translate
) -> None:
    try:
        async with await _open(exchange, request) as generation:
            answer = make(generation)
            async for event in generation:
                match event:
                    case Finished(usage=usage):
                        await exchange.respond(200, answer.encode(usage))
                    case Failed(error=error):
                        raise error
                    case _:
                        answer.take(event)
    except BayardError as error:
        raise say(error) from None


async def _stream(
    exchange: Exchange,
    keeper: StreamKeeper,
    request: GenerationRequest,
    make: Callable[[Generation], StreamWriter],
    say: Translate,
    headers: Headers,
) -> None:
    task = asyncio.current_task()
    assert task is not None
    stream = SseStream(exchange, task.cancel, headers, comments=headers is HEADERS)
    keeper.add(stream)
    try:
        async with await _open(exchange, request, stream.waits_for) as generation:
            await _write(stream, generation, make(generation))
    except BayardError as error:
        told = say(error)
        if not stream.begun:
            raise told from None
        await stream.write(exchange.dialect.stream_error(wire_error(told), exchange.request_id), last=True)
    finally:
        keeper.remove(stream)


async def _write(stream: SseStream, generation: Generation, writer: StreamWriter) -> None:
    async for event in generation:
        match event:
            case Finished(usage=usage):
                await stream.write(writer.finished(usage), last=True)
            case Failed(error=error):
                raise error
            case _:
                if piece := writer.take(event):
                    await stream.write(piece)
