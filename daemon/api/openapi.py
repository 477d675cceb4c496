"""GET /openapi.json: the public HTTP API, described from the route table and the structs that check the bodies."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

from daemon import __version__
from daemon.api.anthropic.request import CountBody, MessagesBody
from daemon.api.batches.handlers import BatchBody
from daemon.api.dialect import OVERLOADED, Dialect, dialect_of
from daemon.api.embeddings.request import EmbeddingsBody
from daemon.api.embeddings.rerank import RerankBody
from daemon.api.exchange import Exchange
from daemon.api.ollama import request as ollama
from daemon.api.openai.chat_request import ChatBody
from daemon.api.openai.completion_request import CompletionBody
from daemon.api.openai.reply import encode
from daemon.api.openai.responses.request import ResponsesBody
from daemon.api.openai.tokenize import DetokenizeBody, TokenizeBody

if TYPE_CHECKING:
    from daemon.api.routes import Route

BODIES: dict[str, type[msgspec.Struct]] = {
    "/v1/chat/completions": ChatBody,
    "/v1/completions": CompletionBody,
    "/v1/responses": ResponsesBody,
    "/v1/responses/input_tokens": ResponsesBody,
    "/tokenize": TokenizeBody,
    "/detokenize": DetokenizeBody,
    "/v1/embeddings": EmbeddingsBody,
    "/v1/rerank": RerankBody,
    "/v1/messages": MessagesBody,
    "/v1/messages/count_tokens": CountBody,
    "/v1/batches": BatchBody,
    "/api/chat": ollama.ChatBody,
    "/api/generate": ollama.GenerateBody,
    "/api/embed": ollama.EmbedBody,
    "/api/embeddings": ollama.EmbeddingsBody,
    "/api/show": ollama.ShowBody,
}
QUERIES = {
    ("GET", "/v1/files"): ("limit", "order", "after", "purpose"),
    ("GET", "/v1/batches"): ("limit", "order", "after"),
    ("GET", "/v1/responses/{id}"): ("stream",),
    ("GET", "/v1/responses/{id}/input_items"): ("limit", "order", "after"),
}
UPLOADS = {
    "/v1/files": {
        "type": "object",
        "properties": {
            "file": {"type": "string", "format": "binary"},
            "purpose": {"const": "batch"},
            "expires_after[anchor]": {"const": "created_at"},
            "expires_after[seconds]": {"type": "integer"},
        },
        "required": ["file", "purpose"],
        "additionalProperties": False,
    }
}
CONTENTS = {"/v1/files/{id}/content": "application/jsonl"}
KEYED_ERRORS = (401, 403, 429, 503)
BODY_ERRORS = (400, 404, 413, 415)
_MESSAGES = {
    200: "The answer; a stream of events where stream is true.",
    400: "A field is wrong, the prompt does not fit, or the state of things does not allow it.",
    401: "The key is missing or not known.",
    403: "The key may not do this.",
    404: "There is no such model, or nothing of that name.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    429: "A limit of the tenant is used up.",
    500: "A fault of Bayard.",
    503: "Not now; see Retry-After.",
    OVERLOADED: "Not now; see Retry-After.",
}
_STREAMS = {Dialect.OLLAMA: "application/x-ndjson"}  # of the others: server-sent events


async def openapi(exchange: Exchange) -> None:
    """GET /openapi.json"""
    await exchange.respond(200, document())


@cache
def document() -> bytes:
    from daemon.api.routes import public_table

    return encode(describe(public_table().routes))


def describe(routes: tuple[Route, ...]) -> dict[str, Any]:
    """An OpenAPI 3.1 document of these routes."""
    schemas, components = msgspec.json.schema_components(BODIES.values(), ref_template="#/components/schemas/{name}")
    bodies = dict(zip(BODIES, schemas, strict=True))
    contents = {path: {"application/json": {"schema": schema}} for path, schema in bodies.items()}
    contents |= {path: {"multipart/form-data": {"schema": schema}} for path, schema in UPLOADS.items()}
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        content = contents.get(route.template) if route.method == "POST" else None
        paths.setdefault(route.template, {})[route.method.lower()] = _operation(route, content)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Bayard", "version": __version__, "description": "OpenAI-compatible inference."},
        "paths": paths,
        "components": {
            "schemas": components | _error_schemas(),
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: Route, content: dict[str, Any] | None) -> dict[str, Any]:
    keyed = route.auth.value == "key"
    statuses = {200, 500, 503, *(KEYED_ERRORS if keyed else ()), *(BODY_ERRORS if content else ())}
    operation: dict[str, Any] = {
        "operationId": f"{route.method.lower()}{route.template.replace('/', '_').strip('{}')}",
        "responses": {},
    }
    parameters: list[dict[str, Any]] = []
    if route.path.endswith("/"):
        statuses |= {404} if route.method == "GET" else {400, 404}
        parameters.append({"name": "id", "in": "path", "required": True, "schema": {"type": "string"}})
    for name in QUERIES.get((route.method, route.template), ()):
        statuses.add(400)
        parameters.append({"name": name, "in": "query", "required": False, "schema": {"type": "string"}})
    if parameters:
        operation["parameters"] = parameters
    if _dialect(route) is Dialect.ANTHROPIC:
        statuses = {OVERLOADED if status == 503 else status for status in statuses}
    for status in sorted(statuses):
        operation["responses"][str(status)] = _response(status, route)
    if keyed:
        operation["security"] = [{"bearer": []}]
    if content is not None:
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _response(status: int, route: Route) -> dict[str, Any]:
    if status == 200:
        kinds = ["text/plain" if route.path == "/metrics" else CONTENTS.get(route.template, "application/json")]
        if route.path in BODIES and route.method == "POST":
            kinds.append(_STREAMS.get(_dialect(route), "text/event-stream"))
        return {"description": _MESSAGES[status], "content": {kind: {} for kind in kinds}}
    if route.auth.value == "open" and status == 503:
        return {"description": "Not healthy, or not ready; the reasons are in it.", "content": {"application/json": {}}}
    schema = {"$ref": f"#/components/schemas/{_ERROR_NAMES[_dialect(route)]}"}
    return {"description": _MESSAGES[status], "content": {"application/json": {"schema": schema}}}


_ERROR_NAMES = {Dialect.OPENAI: "Error", Dialect.ANTHROPIC: "MessagesError", Dialect.OLLAMA: "OllamaError"}


def _dialect(route: Route) -> Dialect:
    return dialect_of(route.path, speaks_anthropic=False)


def _error_schemas() -> dict[str, Any]:
    text, nullable = {"type": "string"}, {"type": ["string", "null"]}
    fields = {"message": text, "type": text, "param": nullable, "code": nullable}
    error = _closed(fields)
    return {
        "Error": _closed({"error": error}),
        "MessagesError": _closed({"type": {"const": "error"}, "error": error, "request_id": text}),
        "OllamaError": _closed({"error": text}),
    }


def _closed(fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": list(fields)}
