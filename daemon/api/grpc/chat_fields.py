"""Requests of bayard.v1 as the bodies that HTTP would have sent, so that one validator serves both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from daemon.api.body import convert, decode_json
from daemon.api.embeddings.request import EmbeddingsBody, read_embeddings
from daemon.api.grpc.gen import bayard_pb2 as pb
from daemon.api.openai.chat_request import ChatBody, read_chat
from daemon.api.openai.completion_request import CompletionBody, read_completion
from daemon.serving.embedding import EmbeddingRequest
from daemon.serving.request import GenerationRequest
from engine.errors import InvalidParameter

_SAMPLING = (
    "max_tokens", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "seed", "n", "min_tokens", "ignore_eos", "logprobs",
)  # fmt: skip
_CHAT = ("top_logprobs", "parallel_tool_calls", "reasoning_effort")
_objects = msgspec.json.Decoder(dict[str, Any])


def read_chat_request(request: pb.ChatRequest) -> GenerationRequest:
    """Raises: InvalidParameter, as HTTP does"""
    body = _sampling(request, (*_SAMPLING, *_CHAT))
    body["messages"] = [message_body(message) for message in request.messages]
    if request.tools:
        body["tools"] = [tool_body(tool) for tool in request.tools]
    if (choice := _tool_choice(request)) is not None:
        body["tool_choice"] = choice
    if request.HasField("response_format"):
        body["response_format"] = _response_format(request.response_format)
    if request.HasField("chat_template_kwargs_json"):
        body["chat_template_kwargs"] = _object(request.chat_template_kwargs_json, "chat_template_kwargs_json")
    return read_chat(convert(body, ChatBody))


def read_generate_request(request: pb.GenerateRequest) -> GenerationRequest:
    """Raises: InvalidParameter, as HTTP does"""
    body = _sampling(request, (*_SAMPLING, "echo"))
    match request.WhichOneof("prompt"):
        case "text":
            body["prompt"] = request.text
        case "token_ids":
            body["prompt"] = list(request.token_ids.ids)
        case _:
            raise InvalidParameter("Neither text nor token_ids is set.", "Set one.", param="prompt")
    return read_completion(convert(body, CompletionBody))


def read_embed_request(request: pb.EmbedRequest) -> EmbeddingRequest:
    """Raises: InvalidParameter, as HTTP does"""
    if request.texts and request.token_ids:
        raise InvalidParameter("texts and token_ids are both set.", "Send one kind.", param="input")
    given: list[Any] = list(request.texts) or [list(one.ids) for one in request.token_ids]
    body: dict[str, Any] = {"model": request.model, "input": given}
    if request.HasField("dimensions"):
        body["dimensions"] = request.dimensions
    return read_embeddings(convert(body, EmbeddingsBody)).request


def message_body(message: pb.Message) -> dict[str, Any]:
    read: dict[str, Any] = {"role": message.role, "content": message.content}
    for name in ("name", "tool_call_id"):
        if message.HasField(name):
            read[name] = getattr(message, name)
    if message.tool_calls:
        read["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    return read


def tool_body(tool: pb.Tool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name}
    if tool.description:
        function["description"] = tool.description
    if tool.parameters_json:
        function["parameters"] = _object(tool.parameters_json, "tools.parameters_json")
    if tool.HasField("strict"):
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _sampling(request: pb.ChatRequest | pb.GenerateRequest, names: Sequence[str]) -> dict[str, Any]:
    body: dict[str, Any] = {"model": request.model, "stream": True}
    body |= {name: getattr(request, name) for name in names if request.HasField(name)}
    if request.stop:
        body["stop"] = list(request.stop)
    if request.logit_bias:
        body["logit_bias"] = {str(token): bias for token, bias in request.logit_bias.items()}
    return body


def _tool_choice(request: pb.ChatRequest) -> Any:
    if not request.HasField("tool_choice_function"):
        return request.tool_choice if request.HasField("tool_choice") else None
    if request.HasField("tool_choice"):
        raise InvalidParameter("tool_choice and tool_choice_function are both set.", "Set one.", param="tool_choice")
    return {"type": "function", "function": {"name": request.tool_choice_function}}


def _response_format(form: pb.ResponseFormat) -> dict[str, Any]:
    read: dict[str, Any] = {"type": form.type}
    if form.type == "json_schema":
        schema: dict[str, Any] = {"name": form.name or "answer"}
        schema["schema"] = _object(form.schema_json, "response_format.schema_json")
        if form.HasField("strict"):
            schema["strict"] = form.strict
        read["json_schema"] = schema
    return read


def _object(text: str, param: str) -> dict[str, Any]:
    try:
        return decode_json(text.encode(), _objects)
    except InvalidParameter as error:
        raise InvalidParameter(f"{param}: {error.message}", error.hint, param=param) from None
