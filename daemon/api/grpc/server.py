"""build_server: grpc.aio with the Inference service, health that follows readiness, and reflection."""

from __future__ import annotations

import asyncio

from grpc import aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from daemon.api.grpc.gen import bayard_pb2 as pb
from daemon.api.grpc.gen import bayard_pb2_grpc as stubs
from daemon.api.grpc.inference import InferenceService
from daemon.api.health import readiness
from daemon.api.services import Services

INFERENCE = pb.DESCRIPTOR.services_by_name["Inference"].full_name
HEALTH_EVERY_S = 0.5
MIN_PING_INTERVAL_MS = 10_000


class InferenceServer:
    """Owner: the Appliance. add_insecure_port, then start, then stop."""

    def __init__(self, services: Services) -> None:
        most = services.settings.limits.max_body_bytes
        self._services = services
        self._server = aio.server(
            options=[
                ("grpc.max_receive_message_length", most),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),  # a port in use is an error, not a share of it
                ("grpc.http2.min_recv_ping_interval_without_data_ms", MIN_PING_INTERVAL_MS),
                ("grpc.keepalive_permit_without_calls", 1),
            ]
        )
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined]  # its stubs leave it out
        self._watch: asyncio.Task[None] | None = None
        stubs.add_InferenceServicer_to_server(InferenceService(services), self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection((INFERENCE, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server)

    def add_insecure_port(self, address: str) -> int:
        """Raises: RuntimeError if the address cannot be had"""
        return self._server.add_insecure_port(address)

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
        serving = readiness(self._services).ok
        kind = health_pb2.HealthCheckResponse
        told = kind.SERVING if serving else kind.NOT_SERVING
        for name in ("", INFERENCE):
            await self._health.set(name, told)


def build_server(appliance: Services) -> InferenceServer:
    """The gRPC server, without a port yet."""
    return InferenceServer(appliance)
