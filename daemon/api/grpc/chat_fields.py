"""A ChatRequest as the body that HTTP would have sent, so that one validator serves both."""

from __future__ import annotations

from typing import Any

from daemon.api.body import convert
from daemon.api.grpc.gen import bayard_pb2 as pb
from daemon.api.openai.chat_request import ChatBody, read_chat
from daemon.serving.request import GenerationRequest

_OPTIONAL = (
    "max_tokens", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "seed", "n", "min_tokens", "ignore_eos", "logprobs", "top_logprobs",
)  # fmt: skip


def read_chat_request(request: pb.ChatRequest) -> GenerationRequest:
    """Raises: InvalidParameter, as HTTP does"""
    body: dict[str, Any] = {
        "model": request.model,
        "messages": [_message(message) for message in request.messages],
        "stream": True,
    }
    body |= {name: getattr(request, name) for name in _OPTIONAL if request.HasField(name)}
    if request.stop:
        body["stop"] = list(request.stop)
    if request.logit_bias:
        body["logit_bias"] = {str(token): bias for token, bias in request.logit_bias.items()}
    return read_chat(convert(body, ChatBody))


def _message(message: pb.Message) -> dict[str, Any]:
    read: dict[str, Any] = {"role": message.role, "content": message.content}
    for name in ("name", "tool_call_id"):
        if message.HasField(name):
            read[name] = getattr(message, name)
    return read
