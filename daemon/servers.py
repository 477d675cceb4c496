"""The three servers (HTTP, admin, gRPC) around their applications: started together, stopped in reverse."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import structlog
import uvicorn

from daemon.listeners import prepare_unix
from engine.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from grpc import ServerCredentials

    from daemon.api.grpc.server import InferenceServer as GrpcServer

KEEP_ALIVE_S = 75
CLOSE_S = 2.0

log = structlog.get_logger("bayard.servers")


class _Uvicorn(uvicorn.Server):
    """Signals belong to the Appliance."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    """One uvicorn server in this event loop. Owner: the Appliance."""

    def __init__(
        self,
        name: str,
        app: Any,
        sock: socket.socket,
        protocol: type[asyncio.Protocol] | str = "httptools",
        tls: ssl.SSLContext | None = None,
        keep_alive_s: float = KEEP_ALIVE_S,
    ) -> None:
        self.name = name
        self._sock = sock
        config = uvicorn.Config(
            app,
            http=protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=True,
            proxy_headers=False,
            timeout_keep_alive=keep_alive_s,  # type: ignore[arg-type]  # it is only ever given to call_later
            timeout_graceful_shutdown=int(CLOSE_S),
            backlog=2048,
        )
        config.load()
        config.ssl = tls  # ours, so that a new certificate can be loaded into it while it serves
        self._server = _Uvicorn(config)
        self._task: asyncio.Task[None] | None = None

    @property
    def port(self) -> int | None:
        """None for a unix socket."""
        name = self._sock.getsockname()
        return int(name[1]) if isinstance(name, tuple) else None

    @property
    def task(self) -> asyncio.Task[None]:
        """Runs while the server does. Only after start()."""
        assert self._task is not None, "start() comes first"
        return self._task

    @property
    def alive(self) -> bool:
        return self._task is not None and not self._task.done()

    async def start(self) -> None:
        """Blocks: until it accepts connections."""
        self._task = asyncio.create_task(self._server.serve(sockets=[self._sock]), name=f"server {self.name}")
        while not self._server.started:
            if self._task.done():
                self._task.result()
                raise ConfigError(f"the {self.name} server ended while starting.", "See the log before this line.")
            await asyncio.sleep(0.005)

    async def stop(self) -> None:
        """Stop accepting, let answers be finished for CLOSE_S, close. Harmless when repeated."""
        if self._task is None:
            self._sock.close()
            return
        self._server.should_exit = True
        done, _ = await asyncio.wait({self._task}, timeout=CLOSE_S + 2.0)
        if not done:
            log.warning("server_close_cut", server=self.name)
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=1.0)
        self._sock.close()


class Grpc:
    """The gRPC server in this event loop, on TCP and, where socket names one, on a unix socket. Owner: the Appliance.

    credentials: what TLS needs; None serves in the clear. The unix socket never has TLS: only its owner and group
    come to it.
    """

    def __init__(
        self,
        server: GrpcServer,
        host: str,
        port: int,
        socket_path: Path | None = None,
        credentials: ServerCredentials | None = None,
    ) -> None:
        self._server = server
        self._host = host
        self._port = port
        self._socket_path = socket_path
        self._credentials = credentials
        self.port: int | None = None

    async def start(self) -> None:
        """Raises: ConfigError if an address cannot be had."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        self.port = self._add(f"{host}:{self._port}", "grpc.port", self._credentials)
        if self._socket_path is not None:
            prepare_unix(self._socket_path)
            self._add(f"unix:{self._socket_path}", "grpc.socket", None)
            self._socket_path.chmod(0o660)
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(CLOSE_S)
        if self._socket_path is not None:
            self._socket_path.unlink(missing_ok=True)

    def _add(self, address: str, setting: str, credentials: ServerCredentials | None) -> int:
        try:
            if credentials is None:
                return self._server.add_insecure_port(address)
            return self._server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise ConfigError(f"gRPC cannot listen on {address}: {error}.", f"Choose another {setting}.") from error
