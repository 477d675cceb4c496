"""Tools, shapes and thinking of bayard.v1's Chat: what HTTP submits, and events as messages."""

from __future__ import annotations

import json
from typing import Any

import grpc
import httpx
import pytest
from grpc import aio

from daemon.api.grpc.gen import bayard_pb2 as pb
from daemon.api.grpc.gen import bayard_pb2_grpc as stubs
from tests.fakes.fake_engine import FakeEngine
from tests.fakes.fake_services import MODEL, FakeServices, add_replica
from tests.fakes.fake_text import ByteText

Key = tuple[tuple[str, str], ...]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
TOOL = pb.Tool(name="add", description="adds", parameters_json=json.dumps(SCHEMA))
HTTP_TOOL = {"type": "function", "function": {"name": "add", "description": "adds", "parameters": SCHEMA}}


def hi(**fields: Any) -> pb.ChatRequest:
    return pb.ChatRequest(**{"model": MODEL, "messages": [pb.Message(role="user", content="hi")], **fields})


async def read(channel: aio.Channel, keyed: Key, request: pb.ChatRequest) -> list[pb.ChatDelta]:
    return [delta async for delta in stubs.InferenceStub(channel).Chat(request, metadata=keyed)]


async def test_tool_call_is_told_in_order(channel: aio.Channel, services: FakeServices, keyed: Key) -> None:
    services.engine.reply = CALL
    deltas = await read(channel, keyed, hi(tools=[TOOL]))
    calls = [delta.tool_call for delta in deltas if delta.HasField("tool_call")]
    assert (calls[0].name, bool(calls[0].id), calls[0].index) == ("add", True, 0)
    assert json.loads("".join(call.arguments for call in calls)) == {"a": 1}
    assert [delta.finish_reason for delta in deltas if delta.finish_reason] == ["tool_calls"]


@pytest.mark.parametrize(
    ("fields", "body"),
    [
        ({"tools": [TOOL], "tool_choice": "required"}, {"tools": [HTTP_TOOL], "tool_choice": "required"}),
        (
            {"tools": [TOOL], "tool_choice_function": "add"},
            {"tools": [HTTP_TOOL], "tool_choice": {"type": "function", "function": {"name": "add"}}},
        ),
        (
            {"response_format": pb.ResponseFormat(type="json_schema", name="x", schema_json=json.dumps(SCHEMA))},
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
        ),
        ({"response_format": pb.ResponseFormat(type="json_object")}, {"response_format": {"type": "json_object"}}),
    ],
)
async def test_same_request_submits_the_same_over_both(
    channel: aio.Channel,
    services: FakeServices,
    http: httpx.AsyncClient,
    keyed: Key,
    fields: dict[str, Any],
    body: dict[str, Any],
) -> None:
    await read(channel, keyed, hi(**fields))
    asked = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], **body}
    assert (await http.post("/v1/chat/completions", json=asked)).status_code == 200
    one, other = services.engine.submitted
    assert one.sampling.grammar == other.sampling.grammar is not None
    assert one.prompt_token_ids == other.prompt_token_ids


async def test_history_with_calls_is_rendered_as_over_http(
    channel: aio.Channel, services: FakeServices, http: httpx.AsyncClient, keyed: Key
) -> None:
    call = pb.ToolCall(id="call_1", name="add", arguments='{"a": 1}')
    turns = [
        pb.Message(role="user", content="add"),
        pb.Message(role="assistant", tool_calls=[call]),
        pb.Message(role="tool", content="2", tool_call_id="call_1"),
    ]
    await read(channel, keyed, hi(messages=turns, tools=[TOOL]))
    function = {"name": "add", "arguments": '{"a": 1}'}
    told = {"id": "call_1", "type": "function", "function": function}
    messages = [
        {"role": "user", "content": "add"},
        {"role": "assistant", "content": None, "tool_calls": [told]},
        {"role": "tool", "content": "2", "tool_call_id": "call_1"},
    ]
    body = {"model": MODEL, "messages": messages, "tools": [HTTP_TOOL]}
    assert (await http.post("/v1/chat/completions", json=body)).status_code == 200
    one, other = services.engine.submitted
    assert one.prompt_token_ids == other.prompt_token_ids


async def test_reasoning_is_apart_from_text(channel: aio.Channel, services: FakeServices, keyed: Key) -> None:
    add_replica(
        services.router, "thinker", FakeEngine(reply="<think>\nhm\n</think>\n\nParis"), text=ByteText(thinks=True)
    )
    deltas = await read(channel, keyed, hi(model="thinker"))
    assert "".join(delta.reasoning for delta in deltas) == "hm"
    assert "".join(delta.text for delta in deltas) == "Paris"


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [pb.Tool(name="add", parameters_json="{")]},
        {"tools": [TOOL], "tool_choice": "auto", "tool_choice_function": "add"},
        {"tools": [TOOL], "tool_choice_function": "sub"},
        {"response_format": pb.ResponseFormat(type="json_schema", schema_json="[1]")},
        {"chat_template_kwargs_json": "[]"},
        {"chat_template_kwargs_json": '{"a": 1, "a": 2}'},
    ],
)
async def test_wrong_json_inside_is_an_invalid_argument(
    channel: aio.Channel, services: FakeServices, keyed: Key, fields: dict[str, Any]
) -> None:
    with pytest.raises(aio.AioRpcError) as caught:
        await read(channel, keyed, hi(**fields))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert not services.engine.submitted
