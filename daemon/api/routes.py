"""The table of public routes: method, path, who may call, and what answers. Everything else is refused."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum

from daemon.api import health, openapi
from daemon.api.anthropic.handlers import Messages, count_tokens
from daemon.api.batches import files
from daemon.api.batches import handlers as batches
from daemon.api.embeddings import handlers as embedding
from daemon.api.exchange import Exchange
from daemon.api.ollama import catalogue
from daemon.api.ollama.handlers import Ollama, embed_one, embed_texts
from daemon.api.openai import models
from daemon.api.openai import tokenize as tokenizing
from daemon.api.openai.handlers import Generating
from daemon.api.openai.responses.handlers import Responses, count_input_tokens
from daemon.api.sse import StreamKeeper

Handler = Callable[[Exchange], Awaitable[None]]


class AuthRule(StrEnum):
    OPEN = "open"  # probes and scrapers of the operator's network; nothing of any tenant
    METRICS = "metrics"  # open, or with http.metrics_key a key that may read them
    KEY = "key"  # a usable key that may generate


@dataclass(frozen=True, slots=True)
class Route:
    """path ends with / for a prefix whose tail is one opaque name, perhaps with a suffix after it.

    template is its bounded label in metrics.
    """

    method: str
    path: str
    auth: AuthRule
    handler: Handler
    suffix: str = ""

    @property
    def template(self) -> str:
        return self.path + "{id}" + self.suffix if self.path.endswith("/") else self.path


@dataclass(frozen=True, slots=True)
class Found:
    """route None: allowed holds the methods this path has, and is empty if there is no such path."""

    route: Route | None
    tail: str = ""
    allowed: tuple[str, ...] = ()


class RouteTable:
    def __init__(self, routes: list[Route]) -> None:
        self.routes = tuple(routes)
        self._exact: dict[str, dict[str, Route]] = {}
        self._prefixes: dict[tuple[str, str], dict[str, Route]] = {}  # by prefix and suffix, the longer first
        for route in routes:
            if route.path.endswith("/"):
                self._prefixes.setdefault((route.path, route.suffix), {})[route.method] = route
            else:
                self._exact.setdefault(route.path, {})[route.method] = route
        longest_first = sorted(self._prefixes, key=lambda ends: (len(ends[0]), len(ends[1])), reverse=True)
        self._prefixes = {ends: self._prefixes[ends] for ends in longest_first}

    def find(self, method: str, path: str) -> Found:
        """HEAD is answered by GET."""
        by_method, tail = self._exact.get(path), ""
        if by_method is None:
            for (prefix, suffix), methods in self._prefixes.items():
                if path.startswith(prefix) and path.endswith(suffix) and len(path) > len(prefix) + len(suffix):
                    by_method, tail = methods, path[len(prefix) : len(path) - len(suffix)]
                    break
        if by_method is None:
            return Found(None)
        route = by_method.get("GET" if method == "HEAD" else method)
        if route is None:
            return Found(None, allowed=tuple(sorted({*by_method, *(("HEAD",) if "GET" in by_method else ())})))
        return Found(route, tail)


def public_routes(keeper: StreamKeeper) -> list[Route]:
    generating, messages, responses = Generating(keeper), Messages(keeper), Responses(keeper)
    ollama = Ollama(keeper)
    return [
        Route("POST", "/v1/chat/completions", AuthRule.KEY, generating.chat),
        Route("POST", "/v1/completions", AuthRule.KEY, generating.completion),
        Route("POST", "/v1/responses", AuthRule.KEY, responses.create),
        Route("GET", "/v1/responses/", AuthRule.KEY, responses.retrieve),
        Route("DELETE", "/v1/responses/", AuthRule.KEY, responses.delete),
        Route("GET", "/v1/responses/", AuthRule.KEY, responses.input_items, "/input_items"),
        Route("POST", "/v1/responses/input_tokens", AuthRule.KEY, count_input_tokens),
        Route("POST", "/tokenize", AuthRule.KEY, tokenizing.tokenize),
        Route("POST", "/detokenize", AuthRule.KEY, tokenizing.detokenize),
        Route("GET", "/v1/models", AuthRule.KEY, models.list_models),
        Route("GET", "/v1/models/", AuthRule.KEY, models.retrieve_model),
        Route("POST", "/v1/embeddings", AuthRule.KEY, embedding.embeddings),
        Route("POST", "/v1/rerank", AuthRule.KEY, embedding.rerank_documents),
        Route("POST", "/v1/messages", AuthRule.KEY, messages.messages),
        Route("POST", "/v1/messages/count_tokens", AuthRule.KEY, count_tokens),
        Route("POST", "/v1/files", AuthRule.KEY, files.upload),
        Route("GET", "/v1/files", AuthRule.KEY, files.list_files),
        Route("GET", "/v1/files/", AuthRule.KEY, files.retrieve_file),
        Route("DELETE", "/v1/files/", AuthRule.KEY, files.delete_file),
        Route("GET", "/v1/files/", AuthRule.KEY, files.file_content, "/content"),
        Route("POST", "/v1/batches", AuthRule.KEY, batches.create_batch),
        Route("GET", "/v1/batches", AuthRule.KEY, batches.list_batches),
        Route("GET", "/v1/batches/", AuthRule.KEY, batches.retrieve_batch),
        Route("POST", "/v1/batches/", AuthRule.KEY, batches.cancel_batch, "/cancel"),
        Route("POST", "/api/chat", AuthRule.KEY, ollama.chat),
        Route("POST", "/api/generate", AuthRule.KEY, ollama.generate),
        Route("POST", "/api/embed", AuthRule.KEY, embed_texts),
        Route("POST", "/api/embeddings", AuthRule.KEY, embed_one),
        Route("POST", "/api/show", AuthRule.KEY, catalogue.show),
        Route("GET", "/api/tags", AuthRule.KEY, catalogue.tags),
        Route("GET", "/api/ps", AuthRule.KEY, catalogue.running),
        Route("GET", "/api/version", AuthRule.KEY, catalogue.version),
        Route("GET", "/healthz", AuthRule.OPEN, health.healthz),
        Route("GET", "/readyz", AuthRule.OPEN, health.readyz),
        Route("GET", "/metrics", AuthRule.METRICS, health.metrics),
        Route("GET", "/openapi.json", AuthRule.OPEN, openapi.openapi),
    ]


def public_table(keeper: StreamKeeper | None = None) -> RouteTable:
    return RouteTable(public_routes(StreamKeeper() if keeper is None else keeper))
