"""GET /v1/models and /v1/models/{id}: what this key can ask for now, in a form that both kinds of clients read."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from daemon.api.exchange import Exchange
from daemon.api.openai.reply import encode
from engine.errors import ModelNotFound


async def list_models(exchange: Exchange) -> None:
    """GET /v1/models"""
    models = [_model(exchange, name) for name in _visible(exchange)]
    ends = {"first_id": models[0]["id"] if models else None, "last_id": models[-1]["id"] if models else None}
    await exchange.respond(200, encode({"object": "list", "data": models, "has_more": False, **ends}))


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
    router, limits = exchange.services.router, exchange.principal.limits
    return [name for name in sorted({*router.models(), *router.on_demand()}) if router.may_use(limits, name)]


def _model(exchange: Exchange, name: str) -> dict[str, Any]:
    router = exchange.services.router
    context_tokens, since_mono = router.on_demand().get(name), router.since_mono
    if context_tokens is None:  # it is there: to look for its replica loads nothing
        replica = router.replica_for(name)
        context_tokens, since_mono = replica.max_context_tokens, replica.since_mono
    since = int(time.time() - (time.monotonic() - since_mono))
    return {
        "id": name,
        "object": "model",
        "created": since,
        "owned_by": "bayard",
        "max_model_len": context_tokens,
        # as Anthropic's clients read it
        "type": "model",
        "display_name": name,
        "created_at": datetime.fromtimestamp(since, UTC).isoformat().replace("+00:00", "Z"),
        "lifecycle": "active",
        "max_input_tokens": context_tokens,
        "max_tokens": context_tokens,
    }
