"""What Ollama's clients ask of models: /api/tags, /api/ps, /api/show and /api/version."""

from __future__ import annotations

import asyncio
import hashlib
import time
from typing import TYPE_CHECKING, Any

import msgspec

from daemon import __version__
from daemon.api.exchange import Exchange
from daemon.api.ollama.request import ShowBody
from daemon.api.openai.reply import encode
from daemon.serving.chat_prompt import thinks
from engine.errors import InvalidParameter, ModelNotFound, PermissionDenied

if TYPE_CHECKING:
    from daemon.models.record import ModelRecord
    from daemon.router import Replica

SPOKEN_VERSION = "0.12.6"  # of the contract: clients look whether it has what they need
NEVER = "2318-01-01T00:00:00Z"  # when a model is unloaded: the plan in force decides
_show_decoder = msgspec.json.Decoder(ShowBody)


async def version(exchange: Exchange) -> None:
    """GET /api/version"""
    await exchange.respond(200, encode({"version": SPOKEN_VERSION, "server": f"bayard/{__version__}"}))


async def tags(exchange: Exchange) -> None:
    """GET /api/tags"""
    await exchange.respond(200, encode({"models": [_listed(*pair) for pair in await _served(exchange)]}))


async def running(exchange: Exchange) -> None:
    """GET /api/ps. What is served is what is loaded."""
    models = []
    for replica, record in await _served(exchange):
        on_device = 0 if replica.device == "cpu" else _size(record)
        more = {"expires_at": NEVER, "size_vram": on_device, "context_length": replica.max_context_tokens}
        models.append(_listed(replica, record) | more)
    await exchange.respond(200, encode({"models": models}))


async def show(exchange: Exchange) -> None:
    """POST /api/show"""
    body: ShowBody = await exchange.read_json(_show_decoder, any_media_type=True)
    asked = body.model or body.name
    if not asked:
        raise InvalidParameter("The field 'model' is required.", param="model")
    name = served_name(exchange, asked)
    assert exchange.principal is not None
    if not exchange.services.router.may_use(exchange.principal.limits, name):
        raise PermissionDenied(f"This key may not use the model {name[:128]!r}.", param="model")
    replica = exchange.services.router.replica_for(name)
    record = await asyncio.to_thread(exchange.services.model_record, name)
    architecture = record.architecture if record else "unknown"
    facts: dict[str, Any] = {
        "general.architecture": architecture,
        f"{architecture}.context_length": replica.max_context_tokens,
    }
    if record is not None:
        facts["general.parameter_count"] = record.num_parameters
    if replica.embeds:
        facts[f"{architecture}.embedding_length"] = replica.embedding_dimensions
    answer = {
        "license": record.licence if record and record.licence else "",
        "modelfile": "",
        "parameters": "",
        "template": "",
        "details": _details(record),
        "model_info": facts,
        "capabilities": _capabilities(replica),
        "modified_at": _modified(replica, record),
    }
    await exchange.respond(200, encode(answer))


def served_name(exchange: Exchange, asked: str) -> str:
    """The name that is meant: clients put `:latest` behind names that have no tag."""
    short = asked.removesuffix(":latest")
    router = exchange.services.router
    known = {*router.models(), *router.on_demand()}
    return short if asked not in known and short in known else asked


async def _served(exchange: Exchange) -> list[tuple[Replica, ModelRecord | None]]:
    assert exchange.principal is not None
    limits, services = exchange.principal.limits, exchange.services
    found: list[tuple[Replica, ModelRecord | None]] = []
    for name in services.router.models():
        if services.router.may_use(limits, name):
            try:
                replica = services.router.replica_for(name)
            except ModelNotFound:  # it went away while others were read
                continue
            found.append((replica, await asyncio.to_thread(services.model_record, name)))
    return found


def _listed(replica: Replica, record: ModelRecord | None) -> dict[str, Any]:
    return {
        "name": replica.model,
        "model": replica.model,
        "modified_at": _modified(replica, record),
        "size": _size(record),
        "digest": _digest(replica, record),
        "details": _details(record),
    }


def _size(record: ModelRecord | None) -> int:
    return record.weight_bytes if record else 0


def _modified(replica: Replica, record: ModelRecord | None) -> str:
    if record is not None:
        return record.imported_at.isoformat().replace("+00:00", "Z")
    since = time.time() - (time.monotonic() - replica.since_mono)
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(since))


def _digest(replica: Replica, record: ModelRecord | None) -> str:
    """Of what the model's files hold, as they were imported."""
    if record is None:
        return hashlib.sha256(replica.model.encode()).hexdigest()
    if len(record.files) == 1:
        return record.files[0].sha256
    return hashlib.sha256("".join(sorted(file.sha256 for file in record.files)).encode()).hexdigest()


def _details(record: ModelRecord | None) -> dict[str, Any]:
    if record is None:
        return {"parent_model": "", "format": "", "family": "", "families": [], "parameter_size": "",
                "quantization_level": ""}  # fmt: skip
    return {
        "parent_model": "",
        "format": record.format,
        "family": record.architecture,
        "families": [record.architecture],
        "parameter_size": _short(record.num_parameters),
        "quantization_level": record.source_dtype,
    }


def _short(parameters: int) -> str:
    for unit, size in (("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if parameters >= size:
            return f"{parameters / size:.1f}{unit}"
    return str(parameters)


def _capabilities(replica: Replica) -> list[str]:
    if not replica.generates:
        return ["embedding"]
    found = ["completion", "tools"] if replica.text.has_chat_template else ["completion"]
    if thinks(replica.text):
        found.append("thinking")
    return [*found, "embedding"] if replica.embeds else found
