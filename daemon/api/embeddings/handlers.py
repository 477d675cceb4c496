"""The handlers of /v1/embeddings and /v1/rerank."""

from __future__ import annotations

import asyncio
from typing import Any

from daemon.api.embeddings import request, rerank
from daemon.api.embeddings.vectors import as_base64, as_floats
from daemon.api.exchange import Exchange
from daemon.api.openai.handlers import until_client_gone
from daemon.api.openai.reply import encode
from daemon.serving.embedding import Embedded, EmbeddingRequest

BIG = 64  # vectors; above this an answer is written off the loop


async def embeddings(exchange: Exchange) -> None:
    """POST /v1/embeddings"""
    asked = request.read_embeddings(await exchange.read_json(request.decoder))
    await until_client_gone(exchange, _embeddings(exchange, asked))


async def rerank_documents(exchange: Exchange) -> None:
    """POST /v1/rerank"""
    body = await exchange.read_json(rerank.decoder)
    await until_client_gone(exchange, _rerank(exchange, body))


async def embed(exchange: Exchange, asked: EmbeddingRequest) -> Embedded:
    assert exchange.principal is not None
    return await exchange.services.embedding.embed(asked, exchange.principal, origin=exchange.origin)


async def _embeddings(exchange: Exchange, asked: request.EmbeddingsAsked) -> None:
    embedded = await embed(exchange, asked.request)
    big = len(embedded.vectors) > BIG
    body = await asyncio.to_thread(_embeddings_body, embedded, asked) if big else _embeddings_body(embedded, asked)
    await exchange.respond(200, body)


def _embeddings_body(embedded: Embedded, asked: request.EmbeddingsAsked) -> bytes:
    data: list[dict[str, Any]] = [
        {"object": "embedding", "index": at, "embedding": as_base64(one) if asked.base64 else as_floats(one)}
        for at, one in enumerate(embedded.vectors)
    ]
    usage = {"prompt_tokens": embedded.usage.prompt_tokens, "total_tokens": embedded.usage.total_tokens}
    return encode({"object": "list", "data": data, "model": embedded.model, "usage": usage})


async def _rerank(exchange: Exchange, body: rerank.RerankBody) -> None:
    embedded = await embed(exchange, rerank.read_rerank(body))
    big = len(embedded.vectors) > BIG
    answer = await asyncio.to_thread(rerank.answer, embedded, body) if big else rerank.answer(embedded, body)
    await exchange.respond(200, encode(answer))
