"""Everything that listens: addresses taken first, then parts and servers started in order, each with its stop."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from daemon.listeners import close_unix, listen_tcp, listen_unix
from daemon.servers import Grpc, HttpServer

if TYPE_CHECKING:
    import socket

    from daemon.app import Appliance
    from daemon.tls.server_tls import ServerTls

CERTIFICATE_LOOK_S = 5.0


async def open_servers(app: Appliance) -> None:
    """Raises: ConfigError for an address that is taken, or a certificate that cannot be used"""
    from daemon.api.admin import PeerProtocol, build_admin_app
    from daemon.api.batches.running import build_runner
    from daemon.api.connections import Connections
    from daemon.api.guard import GuardedProtocol, guarded
    from daemon.api.http import build_app
    from daemon.tenants.first_key import make_first_key

    settings = app.settings
    if settings.tls.enabled or settings.tls.admin_port is not None:
        from daemon.tls.server_tls import ServerTls  # with it come 14 MB of cryptography

        app.tls = ServerTls(settings.tls, settings.state_dir)
    if settings.tracing.endpoint:
        from daemon.telemetry.tracing import Tracing

        tracing = Tracing(settings.tracing.endpoint)
        app.at_stop("tracing", lambda: asyncio.to_thread(tracing.close))
        app.serving.settlement.spans = tracing
    # every address is taken first: a port in use is said before any model is loaded
    http_socket = listen_tcp(settings.http.host, settings.http.port, "http")
    app.at_stop("http socket", http_socket.close)
    admin_tls_socket: socket.socket | None = None
    if settings.tls.admin_port is not None:
        admin_tls_socket = listen_tcp(settings.tls.admin_host, settings.tls.admin_port, "tls.admin")
        app.at_stop("admin TLS socket", admin_tls_socket.close)
    admin_socket = listen_unix(settings.admin_socket)
    app.at_stop("admin socket", lambda: close_unix(admin_socket, settings.admin_socket))
    app.at_stop("serving", app.serving.close)
    app.at_stop("operations", app.operations.close)
    app.tenants.usage.count_losses(settings.state_dir / "usage.count")
    await app.start_part("tenants", app.tenants.start, app.tenants.stop)
    await make_first_key(app.tenants, settings.state_dir)
    from daemon.strategy.parts import drained_devices

    app.supervisor.drained |= await asyncio.to_thread(drained_devices, app.store)
    await app.start_part("upkeep", app.upkeep.start, app.upkeep.stop)
    if settings.grpc.enabled:
        await _open_grpc(app)
    admin_app = build_admin_app(app)
    app.admin = HttpServer("admin", admin_app, admin_socket, PeerProtocol)
    await app.start_part("admin", app.admin.start, app.admin.stop)
    if admin_tls_socket is not None and app.tls is not None:
        app.admin_tls = HttpServer("admin TLS", admin_app, admin_tls_socket, GuardedProtocol, app.tls.context)
        await app.start_part("admin TLS", app.admin_tls.start, app.admin_tls.stop)
    context = app.tls.context if app.tls is not None and settings.tls.enabled else None
    app.connections = Connections(settings.http.max_connections)
    app.http = HttpServer(
        "http", build_app(app), http_socket, guarded(app.connections), context, settings.http.keep_alive_s
    )
    await app.start_part("http", app.http.start, app.http.stop)
    if app.tls is not None:
        following = asyncio.create_task(_follow(app.tls), name="follow certificates")
        app.at_stop("certificates", lambda: _cancel(following))
    # started last and so stopped first: streams that are cut still get their error event through the servers
    await app.start_part("supervisor", _nothing, lambda: app.supervisor.stop(0.0))
    await app.start_part("controller", app.controller.start, app.controller.stop)
    app.runner = build_runner(app, app.events)
    await app.start_part("batches", app.runner.start, app.runner.stop)


async def _open_grpc(app: Appliance) -> None:
    from daemon.api.grpc.server import build_server

    settings = app.settings.grpc
    listen_tcp(settings.host, settings.port, "grpc").close()  # gRPC itself would share a port, silently
    path = Path(settings.socket) if settings.socket else None
    credentials = app.tls.grpc_credentials() if app.tls is not None and app.settings.tls.enabled else None
    app.grpc = Grpc(build_server(app), settings.host, settings.port, path, credentials)
    await app.start_part("grpc", app.grpc.start, app.grpc.stop)


async def _follow(tls: ServerTls) -> None:
    while True:
        await asyncio.sleep(CERTIFICATE_LOOK_S)
        tls.look()


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()


async def _nothing() -> None:
    return
