"""bayard.v1.Inference: the same path as HTTP, with statuses for errors and messages for events. Behind the Guard."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from grpc.aio import ServicerContext

from daemon.api.embeddings.vectors import as_floats
from daemon.api.grpc import tokenizing
from daemon.api.grpc.chat_fields import read_chat_request, read_embed_request, read_generate_request
from daemon.api.grpc.deltas import usage_message, write_events
from daemon.api.grpc.gen import bayard_pb2 as pb
from daemon.api.grpc.gen import bayard_pb2_grpc as stubs
from daemon.api.grpc.guard import current_call
from daemon.api.services import Services
from daemon.serving.request import GenerationRequest

if TYPE_CHECKING:
    Context = ServicerContext[Any, Any]

ORIGIN = "grpc"


class InferenceService(stubs.InferenceServicer):  # type: ignore[misc]  # generated code has no types
    def __init__(self, services: Services) -> None:
        self._services = services

    async def Chat(self, request: pb.ChatRequest, context: Context) -> None:
        await self._generate(read_chat_request(request), context, pb.ChatDelta)

    async def Generate(self, request: pb.GenerateRequest, context: Context) -> None:
        await self._generate(read_generate_request(request), context, pb.GenerateDelta)

    async def Embed(self, request: pb.EmbedRequest, context: Context) -> pb.EmbedResponse:
        asked = replace(read_embed_request(request), deadline_s=context.time_remaining())
        embedded = await self._services.embedding.embed(asked, current_call().principal, origin=ORIGIN)
        answer = pb.EmbedResponse(id=embedded.id, model=embedded.model, usage=usage_message(embedded.usage))
        for vector in embedded.vectors:
            answer.embeddings.add(values=as_floats(vector))
        return answer

    async def Tokenize(self, request: pb.TokenizeRequest, context: Context) -> pb.TokenizeResponse:
        return await tokenizing.tokenize(self._services, current_call().principal, request)

    async def Detokenize(self, request: pb.DetokenizeRequest, context: Context) -> pb.DetokenizeResponse:
        return await tokenizing.detokenize(self._services, current_call().principal, request)

    async def ListModels(self, request: pb.ListModelsRequest, context: Context) -> pb.ListModelsResponse:
        principal = current_call().principal
        answer = pb.ListModelsResponse()
        router, now = self._services.router, time.time() - time.monotonic()
        for name in router.models():
            if router.may_use(principal.limits, name):
                replica = router.replica_for(name)
                answer.models.add(
                    id=name,
                    created=int(now + replica.since_mono),
                    max_context_tokens=replica.max_context_tokens,
                    generates=replica.generates,
                    embeds=replica.embeds,
                    embedding_dimensions=replica.embedding_dimensions,
                )
        for name, context_tokens in router.on_demand().items():  # what they can do is known once they are loaded
            if router.may_use(principal.limits, name):
                answer.models.add(id=name, created=int(now + router.since_mono), max_context_tokens=context_tokens)
        return answer

    async def _generate(self, request: GenerationRequest, context: Context, kind: Any) -> None:
        request = replace(request, deadline_s=context.time_remaining())
        principal = current_call().principal
        async with await self._services.serving.open(request, principal, origin=ORIGIN) as generation:
            await write_events(generation, context, kind)
