"""build_server: grpc.aio with Bayard's own service, KServe v2, health that follows readiness, and reflection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from grpc import aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from daemon.api.grpc.gen import bayard_pb2 as pb
from daemon.api.grpc.gen import bayard_pb2_grpc as stubs
from daemon.api.grpc.gen import kserve_pb2 as kp
from daemon.api.grpc.gen import kserve_pb2_grpc as kserve_stubs
from daemon.api.grpc.guard import Guard
from daemon.api.grpc.inference import InferenceService
from daemon.api.grpc.kserve import KServeService
from daemon.api.grpc.reflection import add_reflection
from daemon.api.health import readiness
from daemon.api.services import Services

INFERENCE = pb.DESCRIPTOR.services_by_name["Inference"].full_name
KSERVE = kp.DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name
HEALTH_EVERY_S = 0.5
MIN_PING_INTERVAL_MS = 10_000
HANDSHAKE_MS = 10_000  # a connection that says nothing, or not enough
IDLE_MS = 600_000  # without a call; clients connect again by themselves
KEEPALIVE_MS = 60_000  # a peer that vanished is found out, however long its stream is silent


class InferenceServer:
    """Owner: the Appliance. Ports are added, then start, then stop."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._server = aio.server(
            interceptors=(Guard(services),),
            options=[
                ("grpc.max_receive_message_length", services.settings.grpc.max_message_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),  # a port in use is an error, not a share of it
                ("grpc.http2.min_recv_ping_interval_without_data_ms", MIN_PING_INTERVAL_MS),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
                ("grpc.max_connection_idle_ms", IDLE_MS),
                ("grpc.keepalive_time_ms", KEEPALIVE_MS),
                ("grpc.keepalive_timeout_ms", KEEPALIVE_MS),
            ],
        )
        self._health = FreshHealth(self._tell_health)
        self._watch: asyncio.Task[None] | None = None
        self._named: set[str] = set()  # models whose health was told
        stubs.add_InferenceServicer_to_server(InferenceService(services), self._server)
        kserve_stubs.add_GRPCInferenceServiceServicer_to_server(KServeService(services), self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        add_reflection(self._server, (INFERENCE, KSERVE, health.SERVICE_NAME), (kp.DESCRIPTOR.pool,))

    def add_insecure_port(self, address: str) -> int:
        """address: host:port, or unix:PATH. Raises: RuntimeError if it cannot be had"""
        return self._server.add_insecure_port(address)

    def add_secure_port(self, address: str, credentials: grpc.ServerCredentials) -> int:
        """Raises: RuntimeError if the address cannot be had"""
        return self._server.add_secure_port(address, credentials)

    async def start(self) -> None:
        await self._tell_health()
        await self._server.start()
        self._watch = asyncio.create_task(self._keep_health(), name="grpc-health")

    async def stop(self, grace_s: float | None) -> None:
        """Tell NOT_SERVING, let calls finish for grace_s, then abort them. Harmless when repeated."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
            self._watch = None
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_s)

    async def _keep_health(self) -> None:
        while True:
            await asyncio.sleep(HEALTH_EVERY_S)
            await self._tell_health()

    async def _tell_health(self) -> None:
        """Overall, of each service, and of each model under its name."""
        kind = health_pb2.HealthCheckResponse
        serving = readiness(self._services).ok
        for name in ("", INFERENCE, KSERVE):
            await self._health.set(name, kind.SERVING if serving else kind.NOT_SERVING)
        models = set(self._services.router.models())
        self._named |= models
        for name in self._named:
            up = name in models and not self._services.tenants.admission.draining
            await self._health.set(name, kind.SERVING if up else kind.NOT_SERVING)


class FreshHealth(health.aio.HealthServicer):  # type: ignore[misc,name-defined]  # its stubs leave it out
    """Health that is looked up when it is asked for; who watches hears of changes every HEALTH_EVERY_S."""

    def __init__(self, tell: Callable[[], Awaitable[None]]) -> None:
        super().__init__()
        self._tell = tell

    async def Check(self, request: Any, context: Any) -> Any:
        await self._tell()
        return await super().Check(request, context)


def build_server(appliance: Services) -> InferenceServer:
    """The gRPC server, without a port yet."""
    return InferenceServer(appliance)
