"""inference.GRPCInferenceService (KServe v2, with Triton's additions). Behind the Guard."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from grpc.aio import ServicerContext

from daemon import __version__
from daemon.api.grpc import kserve_models as models
from daemon.api.grpc.gen import kserve_pb2 as kp
from daemon.api.grpc.gen import kserve_pb2_grpc as stubs
from daemon.api.grpc.guard import current_call
from daemon.api.grpc.kserve_infer import infer
from daemon.api.grpc.kserve_stream import InferStream
from daemon.api.health import liveness, readiness
from daemon.api.services import Services

if TYPE_CHECKING:
    Context = ServicerContext[Any, Any]

EXTENSIONS = ("model_configuration", "model_repository(index)", "parameters", "streaming")


class KServeService(stubs.GRPCInferenceServiceServicer):  # type: ignore[misc]  # generated code has no types
    def __init__(self, services: Services) -> None:
        self._services = services

    async def ServerLive(self, request: kp.ServerLiveRequest, context: Context) -> kp.ServerLiveResponse:
        return kp.ServerLiveResponse(live=liveness(self._services).ok)

    async def ServerReady(self, request: kp.ServerReadyRequest, context: Context) -> kp.ServerReadyResponse:
        return kp.ServerReadyResponse(ready=readiness(self._services).ok)

    async def ServerMetadata(self, request: kp.ServerMetadataRequest, context: Context) -> kp.ServerMetadataResponse:
        return kp.ServerMetadataResponse(name="bayard", version=__version__, extensions=EXTENSIONS)

    async def ModelReady(self, request: kp.ModelReadyRequest, context: Context) -> kp.ModelReadyResponse:
        ready = models.is_ready(self._services, current_call().principal, request.name, request.version)
        return kp.ModelReadyResponse(ready=ready)

    async def ModelMetadata(self, request: kp.ModelMetadataRequest, context: Context) -> kp.ModelMetadataResponse:
        return models.metadata(self._services, current_call().principal, request.name, request.version)

    async def ModelConfig(self, request: kp.ModelConfigRequest, context: Context) -> kp.ModelConfigResponse:
        return models.config(self._services, current_call().principal, request.name, request.version)

    async def RepositoryIndex(self, request: kp.RepositoryIndexRequest, context: Context) -> kp.RepositoryIndexResponse:
        return models.index(self._services, current_call().principal, ready=request.ready)

    async def ModelInfer(self, request: kp.ModelInferRequest, context: Context) -> kp.ModelInferResponse:
        return await infer(self._services, current_call().principal, request, context.time_remaining())

    async def ModelStreamInfer(self, requests: AsyncIterator[kp.ModelInferRequest], context: Context) -> None:
        await InferStream(self._services, context).run(requests)
