"""The table of public routes: method, path, who may call, and what answers. Everything else is refused."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum

from daemon.api import health, openapi
from daemon.api.exchange import Exchange
from daemon.api.openai import models
from daemon.api.openai.handlers import Generating
from daemon.api.sse import StreamKeeper

Handler = Callable[[Exchange], Awaitable[None]]


class AuthRule(StrEnum):
    OPEN = "open"  # probes and scrapers of the operator's network; nothing of any tenant
    METRICS = "metrics"  # open, or with http.metrics_key a key that may read them
    KEY = "key"  # a usable key that may generate


@dataclass(frozen=True, slots=True)
class Route:
    """path ends with / for a prefix whose tail is one opaque name. template is its bounded label in metrics."""

    method: str
    path: str
    auth: AuthRule
    handler: Handler

    @property
    def template(self) -> str:
        return self.path + "{id}" if self.path.endswith("/") else self.path


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
        self._prefixes: dict[str, dict[str, Route]] = {}
        for route in routes:
            table = self._prefixes if route.path.endswith("/") else self._exact
            table.setdefault(route.path, {})[route.method] = route

    def find(self, method: str, path: str) -> Found:
        """HEAD is answered by GET."""
        by_method, tail = self._exact.get(path), ""
        if by_method is None:
            for prefix, methods in self._prefixes.items():
                if path.startswith(prefix) and len(path) > len(prefix):
                    by_method, tail = methods, path[len(prefix) :]
        if by_method is None:
            return Found(None)
        route = by_method.get("GET" if method == "HEAD" else method)
        if route is None:
            return Found(None, allowed=tuple(sorted({*by_method, *(("HEAD",) if "GET" in by_method else ())})))
        return Found(route, tail)


def public_routes(generating: Generating) -> list[Route]:
    return [
        Route("POST", "/v1/chat/completions", AuthRule.KEY, generating.chat),
        Route("POST", "/v1/completions", AuthRule.KEY, generating.completion),
        Route("GET", "/v1/models", AuthRule.KEY, models.list_models),
        Route("GET", "/v1/models/", AuthRule.KEY, models.retrieve_model),
        Route("GET", "/healthz", AuthRule.OPEN, health.healthz),
        Route("GET", "/readyz", AuthRule.OPEN, health.readyz),
        Route("GET", "/metrics", AuthRule.METRICS, health.metrics),
        Route("GET", "/openapi.json", AuthRule.OPEN, openapi.openapi),
    ]


def public_table(keeper: StreamKeeper | None = None) -> RouteTable:
    return RouteTable(public_routes(Generating(StreamKeeper() if keeper is None else keeper)))
