"""GET /v1/models and /v1/models/{id}: what this key can ask for now."""

from __future__ import annotations

import time
from typing import Any

from daemon.api.exchange import Exchange
from daemon.api.openai.reply import encode
from engine.errors import ModelNotFound


async def list_models(exchange: Exchange) -> None:
    """GET /v1/models"""
    models = [_model(exchange, name) for name in _visible(exchange)]
    await exchange.respond(200, encode({"object": "list", "data": models}))


async def retrieve_model(exchange: Exchange) -> None:
    """GET /v1/models/{id}. The id is looked up as it is; it is never a path. Raises: ModelNotFound"""
    name = exchange.path_tail
    if name not in _visible(exchange):
        raise ModelNotFound(
            f"There is no model {name[:128]!r} for this key.", "GET /v1/models lists those there are.", param="model"
        )
    await exchange.respond(200, encode(_model(exchange, name)))


def _visible(exchange: Exchange) -> list[str]:
    assert exchange.principal is not None
    limits = exchange.principal.limits
    return [name for name in exchange.services.router.models() if limits.allows_model(name)]


def _model(exchange: Exchange, name: str) -> dict[str, Any]:
    replica = exchange.services.router.replica_for(name)
    since = int(time.time() - (time.monotonic() - replica.since_mono))
    return {
        "id": name,
        "object": "model",
        "created": since,
        "owned_by": "bayard",
        "max_model_len": replica.max_context_tokens,
    }
