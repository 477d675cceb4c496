"""The one door of every RPC: whose key it is, what is logged of it, and where its errors become statuses."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import grpc
import structlog
from grpc import aio
from structlog.contextvars import bind_contextvars, bound_contextvars

from daemon.api.grpc.statuses import abort_with
from daemon.tenants.principal import Principal
from engine.errors import BayardError

if TYPE_CHECKING:
    from daemon.api.services import Services

    Context = aio.ServicerContext[Any, Any]
    Handler = grpc.RpcMethodHandler[Any, Any]
    Behaviour = Callable[[Any, Context], Awaitable[Any]]

# For probes and tools of the operator's network; nothing of any tenant is in their answers. All else needs a key.
OPEN_SERVICES = frozenset({"grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection",
                           "grpc.reflection.v1alpha.ServerReflection"})  # fmt: skip
OPEN_METHODS = frozenset(
    f"/inference.GRPCInferenceService/{name}" for name in ("ServerLive", "ServerReady", "ServerMetadata")
)
REQUEST_ID = "x-request-id"
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Call:
    """What is known of a keyed call before it is looked at."""

    principal: Principal
    request_id: str


_CALL: ContextVar[Call] = ContextVar("grpc call")


def current_call() -> Call:
    """The call that this task, or the one it came from, answers. Only behind the Guard."""
    return _CALL.get()


def needs_key(method: str) -> bool:
    """method: "/package.Service/Name"."""
    return method not in OPEN_METHODS and method.rpartition("/")[0].removeprefix("/") not in OPEN_SERVICES


class Guard(aio.ServerInterceptor):  # type: ignore[type-arg]  # it stands before every kind of call
    """Stands before every RPC. What it lets through are coroutines that write to their context."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def intercept_service(  # type: ignore[override]  # None, for a method that there is not, goes on as None
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        handler = await continuation(details)
        if handler is None or not needs_key(details.method):
            return handler
        return _with_behaviour(handler, lambda inner: self._guarded(inner, details.method))

    def _guarded(self, inner: Behaviour, method: str) -> Behaviour:
        async def guarded(request: Any, context: Context) -> Any:
            request_id = "req_" + secrets.token_hex(12)
            with bound_contextvars(tenant=None, request_id=request_id):
                return await self._at_border(inner, request, context, request_id, method)

        return guarded

    async def _at_border(self, inner: Behaviour, request: Any, context: Context, request_id: str, method: str) -> Any:
        """Where a call ends, once, whatever happens in it."""
        try:
            await context.send_initial_metadata(((REQUEST_ID, request_id),))
            principal = self._services.tenants.authenticate(_secret(context), _address(context))
            bind_contextvars(tenant=principal.tenant_name)
            _CALL.set(Call(principal, request_id))
            return await inner(request, context)
        except aio.AbortError:
            raise
        except BayardError as error:
            await abort_with(context, error)
        except Exception:
            log.exception("grpc_call_broke", method=method)
            await context.abort(grpc.StatusCode.INTERNAL, "Bayard failed on this request; the daemon's log tells more.")


def _with_behaviour(handler: Handler, change: Callable[[Behaviour], Behaviour]) -> Handler:
    """The same handler around a changed behaviour."""
    for arity in ("unary_unary", "unary_stream", "stream_unary", "stream_stream"):
        behaviour = getattr(handler, arity)
        if behaviour is not None:
            make = getattr(grpc, f"{arity}_rpc_method_handler")
            made: Handler = make(
                change(behaviour),
                request_deserializer=handler.request_deserializer,
                response_serializer=handler.response_serializer,
            )
            return made
    raise AssertionError("a handler has one behaviour")


def _address(context: Context) -> str | None:
    """The client's IP address; None on a unix socket. A peer is `ipv4:1.2.3.4:5` or `ipv6:%5B::1%5D:5`."""
    kind, _, rest = unquote(context.peer() or "").partition(":")
    return rest.rpartition(":")[0].strip("[]") if kind in ("ipv4", "ipv6") else None


def _secret(context: Context) -> str | None:
    """The key from the metadata `authorization: Bearer KEY`, or `x-api-key`."""
    found: dict[str, str] = {}
    for key, value in context.invocation_metadata() or ():
        found[key] = value if isinstance(value, str) else value.decode("latin-1")
    bearer = found.get("authorization", "")
    if bearer[:7].lower() == "bearer ":
        return bearer[7:].strip()
    return found.get("x-api-key")
