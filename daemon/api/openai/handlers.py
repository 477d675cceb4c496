"""The generating routes: read, open, write; one flow for chat and text completions."""

from __future__ import annotations

import asyncio
from typing import Any

from daemon.api.exchange import ClientGone, Exchange
from daemon.api.openai import chat_request, completion_request
from daemon.api.openai.chat_reply import ChatChunks, ChatObject
from daemon.api.openai.completion_reply import CompletionChunks, CompletionObject
from daemon.api.openai.reply import error_event
from daemon.api.sse import DONE, SseStream, StreamKeeper
from daemon.serving.events import Failed, Finished
from daemon.serving.generation import Generation
from daemon.serving.request import Endpoint, GenerationRequest
from daemon.serving.waiting import OnWait, unheard
from engine.errors import BayardError


class Generating:
    """The handlers, with the keeper that all their streams share. Owner: the application."""

    def __init__(self, keeper: StreamKeeper) -> None:
        self._keeper = keeper

    async def chat(self, exchange: Exchange) -> None:
        """POST /v1/chat/completions"""
        body = await exchange.read_json(chat_request.decoder)
        await self._answer(exchange, chat_request.read_chat(body))

    async def completion(self, exchange: Exchange) -> None:
        """POST /v1/completions"""
        body = await exchange.read_json(completion_request.decoder)
        await self._answer(exchange, completion_request.read_completion(body))

    async def _answer(self, exchange: Exchange, request: GenerationRequest) -> None:
        work = self._stream(exchange, request) if request.stream else _whole(exchange, request)
        await until_client_gone(exchange, work)

    async def _stream(self, exchange: Exchange, request: GenerationRequest) -> None:
        task = asyncio.current_task()
        assert task is not None
        stream = SseStream(exchange, task.cancel)
        self._keeper.add(stream)
        try:
            async with await _open(exchange, request, stream.waits_for) as generation:
                await _write_events(stream, generation, request)
        except BayardError as error:
            if not stream.begun:
                raise
            await stream.write(error_event(error), last=True)
        finally:
            self._keeper.remove(stream)


async def until_client_gone(exchange: Exchange, work: Any) -> None:
    """Run work; if the client closes first, cancel it and raise ClientGone once it has cleaned up."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(exchange.closed_by_client())
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            working.cancel()
        try:
            await working
        except asyncio.CancelledError:
            # Nobody cancelled this task: either the client went away, or its stream was dropped as stalled.
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                raise
            raise ClientGone from None
    finally:
        watching.cancel()
        if not working.done():  # this task itself is being cancelled: the daemon stops
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)


async def _open(exchange: Exchange, request: GenerationRequest, on_wait: OnWait = unheard) -> Generation:
    assert exchange.principal is not None
    return await exchange.services.serving.open(request, exchange.principal, origin=exchange.origin, on_wait=on_wait)


async def _write_events(stream: SseStream, generation: Generation, request: GenerationRequest) -> None:
    kind = ChatChunks if request.endpoint is Endpoint.CHAT else CompletionChunks
    chunks = kind(
        generation.id,
        generation.created,
        generation.model,
        request.num_choices,
        logprobs=request.with_logprobs,
        include_usage=request.include_usage,
    )
    async for event in generation:
        match event:
            case Finished():
                await stream.write(chunks.finished(event.usage) + DONE, last=True)
            case Failed():
                raise event.error
            case _:
                await stream.write(chunks.chunk(event))


async def _whole(exchange: Exchange, request: GenerationRequest) -> None:
    async with await _open(exchange, request) as generation:
        answer = _object(generation, request)
        async for event in generation:
            match event:
                case Finished():
                    await exchange.respond(200, answer.encode(event.usage))
                case Failed():
                    raise event.error
                case _:
                    answer.take(event)


def _object(generation: Generation, request: GenerationRequest) -> ChatObject | CompletionObject:
    if request.endpoint is Endpoint.COMPLETION:
        return CompletionObject(generation.id, generation.created, request, logprobs=request.with_logprobs)
    return ChatObject(
        generation.id, generation.created, generation.model, request.num_choices, logprobs=request.with_logprobs
    )
