"""The handlers of /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from daemon.api.anthropic import request as fields
from daemon.api.anthropic.reply import MessageEvents, MessageObject
from daemon.api.exchange import Exchange
from daemon.api.openai.reply import encode
from daemon.api.sse import StreamKeeper
from daemon.api.streaming import answer_stream, answer_whole
from daemon.serving import counting
from daemon.serving.generation import Generation
from engine.errors import BayardError


class Messages:
    """Owner: the application. keeper: of all its streams."""

    def __init__(self, keeper: StreamKeeper) -> None:
        self._keeper = keeper

    async def messages(self, exchange: Exchange) -> None:
        """POST /v1/messages"""
        body = await exchange.read_json(fields.decoder)
        request = fields.read_request(body)
        show = fields.shows_thinking(body)

        def whole(generation: Generation) -> MessageObject:
            return MessageObject(generation.id, generation.model, show_thinking=show)

        def events(generation: Generation) -> MessageEvents:
            return MessageEvents(generation.id, generation.model, generation.prompt_tokens, show_thinking=show)

        if request.stream:
            await answer_stream(exchange, self._keeper, request, events, fields.in_these_words)
        else:
            await answer_whole(exchange, request, whole, fields.in_these_words)


async def count_tokens(exchange: Exchange) -> None:
    """POST /v1/messages/count_tokens"""
    request = fields.read_count(await exchange.read_json(fields.count_decoder))
    assert exchange.principal is not None
    try:
        token_ids = await counting.prompt_tokens(exchange.services.router, exchange.principal, request)
    except BayardError as error:
        raise fields.in_these_words(error) from None
    await exchange.respond(200, encode({"input_tokens": len(token_ids)}))
