"""The handlers of /api/chat, /api/generate, /api/embed and /api/embeddings."""

from __future__ import annotations

import time

import msgspec

from daemon.api.embeddings.handlers import embed
from daemon.api.embeddings.vectors import as_floats
from daemon.api.exchange import Exchange
from daemon.api.ollama import request as fields
from daemon.api.ollama.catalogue import served_name
from daemon.api.ollama.reply import LineAnswer, WholeAnswer, elapsed_ns, loaded
from daemon.api.openai.handlers import until_client_gone
from daemon.api.openai.reply import encode
from daemon.api.sse import LINES, StreamKeeper
from daemon.api.streaming import answer_stream, answer_whole
from daemon.serving import counting
from daemon.serving.generation import Generation
from daemon.serving.request import GenerationRequest

_chat_decoder = msgspec.json.Decoder(fields.ChatBody)
_generate_decoder = msgspec.json.Decoder(fields.GenerateBody)
_embed_decoder = msgspec.json.Decoder(fields.EmbedBody)
_embeddings_decoder = msgspec.json.Decoder(fields.EmbeddingsBody)


class Ollama:
    """Owner: the application. keeper: of all its streams."""

    def __init__(self, keeper: StreamKeeper) -> None:
        self._keeper = keeper

    async def chat(self, exchange: Exchange) -> None:
        """POST /api/chat"""
        body: fields.ChatBody = await exchange.read_json(_chat_decoder, any_media_type=True)
        model = served_name(exchange, body.model)
        if not body.messages:
            await _told_loaded(exchange, model, body.model, chat=True)
            return
        await self._answer(exchange, fields.read_chat(body, model), body.model, chat=True)

    async def generate(self, exchange: Exchange) -> None:
        """POST /api/generate"""
        body: fields.GenerateBody = await exchange.read_json(_generate_decoder, any_media_type=True)
        model = served_name(exchange, body.model)
        if not body.prompt:
            await _told_loaded(exchange, model, body.model, chat=False)
            return
        await self._answer(exchange, fields.read_generate(body, model), body.model, chat=False)

    async def _answer(self, exchange: Exchange, request: GenerationRequest, asked: str, *, chat: bool) -> None:
        """asked: the model as the client named it, which is how the answer names it."""

        def whole(generation: Generation) -> WholeAnswer:
            return WholeAnswer(generation, asked, chat=chat)

        def lines(generation: Generation) -> LineAnswer:
            return LineAnswer(generation, asked, chat=chat)

        if request.stream:
            await answer_stream(exchange, self._keeper, request, lines, fields.in_these_words, LINES)
        else:
            await answer_whole(exchange, request, whole, fields.in_these_words)


async def embed_texts(exchange: Exchange) -> None:
    """POST /api/embed"""
    body: fields.EmbedBody = await exchange.read_json(_embed_decoder, any_media_type=True)
    await until_client_gone(exchange, _embed(exchange, body))


async def embed_one(exchange: Exchange) -> None:
    """POST /api/embeddings"""
    body: fields.EmbeddingsBody = await exchange.read_json(_embeddings_decoder, any_media_type=True)
    await until_client_gone(exchange, _embed_one(exchange, body))


async def _embed(exchange: Exchange, body: fields.EmbedBody) -> None:
    began = time.monotonic()
    model = served_name(exchange, body.model)
    request = fields.read_embed(body, model)
    vectors: list[list[float]] = []
    tokens = 0
    if request.inputs:
        embedded = await embed(exchange, request)
        vectors = [as_floats(vector) for vector in embedded.vectors]
        tokens = embedded.usage.prompt_tokens
    else:
        _check_served(exchange, model)
    answer = {"model": body.model, "embeddings": vectors, "total_duration": elapsed_ns(began), "load_duration": 0}
    await exchange.respond(200, encode(answer | {"prompt_eval_count": tokens}))


async def _embed_one(exchange: Exchange, body: fields.EmbeddingsBody) -> None:
    model = served_name(exchange, body.model)
    if not body.prompt:
        _check_served(exchange, model)
        await exchange.respond(200, encode({"embedding": []}))
        return
    request = fields.read_embed(fields.EmbedBody(model=model, input=body.prompt), model)
    embedded = await embed(exchange, request)
    await exchange.respond(200, encode({"embedding": as_floats(embedded.vectors[0])}))


async def _told_loaded(exchange: Exchange, model: str, asked: str, *, chat: bool) -> None:
    _check_served(exchange, model)
    await exchange.respond(200, loaded(asked, chat=chat))


def _check_served(exchange: Exchange, model: str) -> None:
    """Raises: PermissionDenied, ModelNotFound, NotReady"""
    assert exchange.principal is not None
    counting.replica_for(exchange.services.router, exchange.principal, model)
