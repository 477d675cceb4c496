"""ModelStreamInfer: many requests on one stream, answered as they come, told apart by their ids."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import structlog

from daemon.api.errors import sentence
from daemon.api.grpc.deltas import write
from daemon.api.grpc.gen import kserve_pb2 as kp
from daemon.api.grpc.guard import current_call
from daemon.api.grpc.kserve_infer import infer_stream
from engine.errors import BayardError, InvalidParameter

if TYPE_CHECKING:
    from grpc.aio import ServicerContext

    from daemon.api.services import Services

    Context = ServicerContext[Any, Any]

MAX_AT_ONCE = 256  # requests of one stream; one more waits to be read
ERRORS_ARE_STATUSES = "triton_grpc_error"
log = structlog.get_logger(__name__)


class InferStream:
    """One call of ModelStreamInfer. Its requests are tasks that end with it."""

    def __init__(self, services: Services, context: Context) -> None:
        self._services = services
        self._context = context
        self._principal = current_call().principal
        self._writing = asyncio.Lock()
        self._free = asyncio.Semaphore(MAX_AT_ONCE)
        metadata = dict(context.invocation_metadata() or ())
        self._strict = str(metadata.get(ERRORS_ARE_STATUSES, "")).lower() in ("true", "1")

    async def run(self, requests: AsyncIterator[kp.ModelInferRequest]) -> None:
        """Raises: BayardError, only where the client wants errors as statuses"""
        try:
            async with asyncio.TaskGroup() as group:
                async for request in requests:
                    await self._free.acquire()
                    group.create_task(self._answer(request), name="model-stream-infer")
        except BaseExceptionGroup as failed:
            # the first failure has cancelled the others; it is the call's
            raise failed.exceptions[0] from None

    async def _answer(self, request: kp.ModelInferRequest) -> None:
        try:
            responses = infer_stream(self._services, self._principal, request, self._context.time_remaining())
            async with aclosing(responses):
                async for response in responses:
                    await self._write(kp.ModelStreamInferResponse(infer_response=response))
        except BayardError as error:
            if self._strict:
                raise
            log.info("stream_request_refused", code=error.code)
            answer = kp.ModelStreamInferResponse(error_message=_message(error))
            answer.infer_response.id = request.id
            answer.infer_response.model_name = request.model_name
            await self._write(answer)
        finally:
            self._free.release()

    async def _write(self, message: kp.ModelStreamInferResponse) -> None:
        async with self._writing:
            await write(self._context, message)


def _message(error: BayardError) -> str:
    where = f" (parameter {error.param})" if isinstance(error, InvalidParameter) and error.param else ""
    return f"[{error.code}] {sentence(error)}{where}"
