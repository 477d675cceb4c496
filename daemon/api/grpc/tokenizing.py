"""Tokenize and Detokenize of bayard.v1."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from daemon.api.body import convert
from daemon.api.grpc.chat_fields import message_body, tool_body
from daemon.api.grpc.gen import bayard_pb2 as pb
from daemon.api.openai.chat_request import ChatBody, read_chat
from daemon.serving import counting
from daemon.serving.request import ChatPrompt
from engine.errors import InvalidParameter

if TYPE_CHECKING:
    from daemon.api.services import Services
    from daemon.tenants.principal import Principal


async def tokenize(services: Services, principal: Principal, request: pb.TokenizeRequest) -> pb.TokenizeResponse:
    """Raises: InvalidParameter, ModelNotFound, PermissionDenied, NotReady"""
    if request.HasField("text") == bool(request.messages):
        raise InvalidParameter("One of text and messages must be set.", param="text")
    replica = counting.replica_for(services.router, principal, request.model)
    if request.messages:
        token_ids = await _conversation(services, principal, request)
    else:
        special = not request.HasField("add_special_tokens") or request.add_special_tokens
        token_ids = await counting.text_tokens(
            replica, request.text, add_special=special, parse_special=request.parse_special
        )
    return pb.TokenizeResponse(
        token_ids=token_ids,
        token_bytes=[replica.text.token_bytes(token_id) for token_id in token_ids],
        max_context_tokens=replica.max_context_tokens,
    )


async def detokenize(services: Services, principal: Principal, request: pb.DetokenizeRequest) -> pb.DetokenizeResponse:
    """Raises: InvalidParameter, ModelNotFound, PermissionDenied, NotReady"""
    replica = counting.replica_for(services.router, principal, request.model)
    return pb.DetokenizeResponse(text=await counting.tokens_text(replica, list(request.token_ids)))


async def _conversation(services: Services, principal: Principal, request: pb.TokenizeRequest) -> list[int]:
    body = {"model": request.model, "messages": [message_body(message) for message in request.messages]}
    if request.tools:
        body["tools"] = [tool_body(tool) for tool in request.tools]
    read = read_chat(convert(body, ChatBody))
    prompt = read.prompts[0]
    if request.HasField("add_generation_prompt") and isinstance(prompt, ChatPrompt):
        read = replace(read, prompts=(replace(prompt, add_generation_prompt=request.add_generation_prompt),))
    return await counting.prompt_tokens(services.router, principal, read)
