"""The public HTTP application, in plain ASGI: the border where every request ends in exactly one answer."""

from __future__ import annotations

import structlog
from structlog.contextvars import bind_contextvars, bound_contextvars

from daemon.api.cors import Cors
from daemon.api.dialect import dialect_of
from daemon.api.errors import WireError, foreign_error, route_error, wire_error
from daemon.api.exchange import ClientGone, Exchange, Receive, RouteRefusal, Scope, Send
from daemon.api.routes import AuthRule, Found, public_table
from daemon.api.services import Services
from daemon.api.sse import StreamKeeper
from daemon.tenants.principal import Need
from engine.errors import BayardError

log = structlog.get_logger(__name__)


class PublicApp:
    """Owner: the HTTP server."""

    def __init__(self, services: Services, keeper: StreamKeeper | None = None) -> None:
        self.services = services
        self.keeper = StreamKeeper() if keeper is None else keeper
        self.table = public_table(self.keeper)
        self._cors = Cors.of(services.settings.http.cors_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1000})
            return
        exchange = Exchange(scope, receive, send, self.services)
        versioned = exchange.header(b"anthropic-version") is not None
        exchange.dialect = dialect_of(scope["path"], speaks_anthropic=versioned)
        exchange.always = self._cors.headers(exchange.header(b"origin"))
        # whatever is logged on the request's way names it
        with bound_contextvars(tenant=None, request_id=exchange.request_id):
            await self._answer(exchange, self.table.find(scope["method"], scope["path"]))

    async def _answer(self, exchange: Exchange, found: Found) -> None:
        try:
            await self._handle(exchange, found)
        except ClientGone:
            exchange.status = exchange.status or 499
        except RouteRefusal as refusal:
            await exchange.refuse(refusal.wire)
        except BayardError as error:
            await exchange.refuse(wire_error(error))
        except Exception:  # the border of a request: it ends here, once, and the next one is served
            log.exception("request_broke", path=found.route and found.route.template)
            if exchange.status is None:
                await exchange.refuse(foreign_error())
            elif not exchange.ended:  # only a stream is begun before it is complete
                await exchange.break_off(foreign_error())
        finally:
            template = found.route.template if found.route else "unknown"
            self.services.metrics.http_responses.labels(template, str(exchange.status)).inc()

    async def _handle(self, exchange: Exchange, found: Found) -> None:
        if found.route is None:
            if await self._answer_preflight(exchange, found):
                return
            raise RouteRefusal(_no_route(exchange.scope, found))
        need = self._need(found.route.auth)
        if need is not None:
            client = exchange.scope.get("client")
            tenants = self.services.tenants
            exchange.principal = tenants.identify(_secret(exchange), client[0] if client else None, need)
            bind_contextvars(tenant=exchange.principal.tenant_name)
            if need is Need.INFERENCE:
                tenants.admission.knock(exchange.principal)
        exchange.path_tail = found.tail
        await found.route.handler(exchange)

    async def _answer_preflight(self, exchange: Exchange, found: Found) -> bool:
        """Whether this was a browser's question that is answered."""
        if exchange.scope["method"] != "OPTIONS" or exchange.header(b"access-control-request-method") is None:
            return False
        wanted = exchange.header(b"access-control-request-headers")
        headers = self._cors.preflight(exchange.header(b"origin"), wanted, found.allowed)
        if headers is None:
            return False
        await exchange.respond(200, b"", headers)
        return True

    def _need(self, rule: AuthRule) -> Need | None:
        if rule is AuthRule.METRICS:
            return Need.METRICS if self.services.settings.http.metrics_key else None
        return Need.INFERENCE if rule is AuthRule.KEY else None


def build_app(appliance: Services) -> PublicApp:
    """The ASGI application that the HTTP server runs."""
    return PublicApp(appliance)


def _secret(exchange: Exchange) -> str | None:
    """The key, from `Authorization: Bearer` or `x-api-key`; both are sent by some client on every route."""
    bearer = exchange.header(b"authorization")
    if bearer is not None and bearer[:7].lower() == b"bearer ":
        return bearer[7:].strip().decode("latin-1")
    named = exchange.header(b"x-api-key")
    return None if named is None else named.strip().decode("latin-1")


def _no_route(scope: Scope, found: Found) -> WireError:
    method, path = scope["method"], scope["path"][:256]
    if found.allowed:
        return route_error(405, "method_not_allowed", f"{method} is not served at {path}.", allow=found.allowed)
    return route_error(404, "not_found", f"There is no route {method} {path}.")


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": message["type"] + ".complete"})
        if message["type"] == "lifespan.shutdown":
            return
