"""ModelInfer and one request of ModelStreamInfer: open, follow, respond."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from daemon.api.grpc.gen import kserve_pb2 as kp
from daemon.api.grpc.kserve_embed import embed_response, is_embedding
from daemon.api.grpc.kserve_reply import Piece, empty_final, final_mark, response, whole_response
from daemon.api.grpc.kserve_request import EMPTY_FINAL, InferRequest, read_infer, read_parameters
from daemon.serving.events import ChoiceDone, Failed, Finished, TextDelta
from engine.errors import DeadlineExceeded

if TYPE_CHECKING:
    from daemon.api.services import Services
    from daemon.serving.generation import Generation
    from daemon.tenants.principal import Principal

ORIGIN = "grpc"


async def infer(
    services: Services, principal: Principal, request: kp.ModelInferRequest, remaining_s: float | None
) -> kp.ModelInferResponse:
    """The one response. Raises: BayardError"""
    if is_embedding(request):
        return await embed_response(services, principal, request, remaining_s)
    asked = read_infer(request, may_stream=False)
    async with _opened(services, principal, asked, remaining_s) as generation:
        return await _whole(asked, generation)


async def infer_stream(
    services: Services, principal: Principal, request: kp.ModelInferRequest, remaining_s: float | None
) -> AsyncGenerator[kp.ModelInferResponse, None]:
    """Every response of one request, the last of which says so. Raises: BayardError"""
    if is_embedding(request):
        made = await embed_response(services, principal, request, remaining_s)
        wants_empty = read_parameters(request).get(EMPTY_FINAL) is True
        yield final_mark(made, final=not wants_empty)
        if wants_empty:
            yield final_mark(
                kp.ModelInferResponse(model_name=made.model_name, model_version=made.model_version, id=made.id),
                final=True,
            )
        return
    asked = read_infer(request, may_stream=True)
    async with _opened(services, principal, asked, remaining_s) as generation:
        if asked.stream:
            async for one in _pieces(asked, generation):
                yield one
        else:
            yield final_mark(await _whole(asked, generation), final=not asked.empty_final)
    if asked.empty_final:
        yield empty_final(asked)


@asynccontextmanager
async def _opened(
    services: Services, principal: Principal, asked: InferRequest, remaining_s: float | None
) -> AsyncGenerator[Generation, None]:
    """Raises: DeadlineExceeded once the request's own timeout has passed"""
    bounds = [bound for bound in (remaining_s, asked.timeout_s) if bound is not None]
    request = replace(asked.generation, deadline_s=min(bounds) if bounds else None)
    try:
        async with asyncio.timeout(asked.timeout_s):
            async with await services.serving.open(request, principal, origin=ORIGIN) as generation:
                yield generation
    except TimeoutError:
        raise DeadlineExceeded(
            f"The request's timeout of {asked.timeout_s:.3f} s has passed.", "Allow more time."
        ) from None


async def _whole(asked: InferRequest, generation: Generation) -> kp.ModelInferResponse:
    piece = Piece(asked.generation.num_choices)
    async for event in generation:
        match event:
            case TextDelta() | ChoiceDone():
                _add(piece, event)
            case Finished(usage=usage):
                return whole_response(asked, piece, usage)
            case Failed(error=error):
                raise error
    raise AssertionError("a generation ends with Finished or Failed")


async def _pieces(asked: InferRequest, generation: Generation) -> AsyncGenerator[kp.ModelInferResponse, None]:
    """Each piece is held until the next comes, so that the last one can tell that it is."""
    held: Piece | None = None
    told_tokens = 0
    prompt_tokens = generation.prompt_tokens
    async for event in generation:
        match event:
            case TextDelta():
                if held is not None:
                    yield final_mark(response(asked, held, prompt_tokens), final=False)
                held = Piece(1)
                _add(held, event)
                held.output_tokens = generation.live.output_tokens - told_tokens
                told_tokens = generation.live.output_tokens
            case ChoiceDone():
                held = held or Piece(1)
                _add(held, event)
            case Finished(usage=usage):
                held = held or Piece(1)
                held.output_tokens += usage.completion_tokens - told_tokens
                yield final_mark(response(asked, held, prompt_tokens), final=not asked.empty_final)
            case Failed(error=error):
                raise error


def _add(piece: Piece, event: TextDelta | ChoiceDone) -> None:
    if isinstance(event, ChoiceDone):
        piece.reasons[event.index] = event.reason
        return
    piece.texts[event.index] += event.text
    piece.entries[event.index].extend(event.logprobs or ())
