"""/v1/chat/completions over raw HTTP: each field is honoured, or refused by its name."""

from __future__ import annotations

import json
import math
from typing import Any

import httpx
import pytest

from daemon.api.openai import chat_request
from daemon.tenants.limits import TenantLimits
from tests.fakes.fake_services import MODEL, FakeServices
from tests.fakes.fake_text import ByteText

CHAT = "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": HI, **fields}


def chunks_of(response: httpx.Response) -> list[dict[str, Any]]:
    lines = [line for line in response.text.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


async def test_stream_with_usage_says_null_until_the_last_chunk(http: httpx.AsyncClient) -> None:
    response = await http.post(CHAT, json=chat(stream=True, stream_options={"include_usage": True}, max_tokens=3))
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["x-accel-buffering"] == "no"
    assert response.headers["x-request-id"].startswith("req_")
    *others, last = chunks_of(response)
    assert all(chunk["usage"] is None for chunk in others)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 3
    assert last["usage"]["prompt_tokens_details"]["cached_tokens"] == 3


async def test_stream_without_options_has_no_usage(http: httpx.AsyncClient) -> None:
    chunks = chunks_of(await http.post(CHAT, json=chat(stream=True)))
    assert all("usage" not in chunk and len(chunk["choices"]) == 1 for chunk in chunks)


async def test_stream_of_two_choices_counts_the_prompt_once(http: httpx.AsyncClient) -> None:
    body = chat(stream=True, n=2, seed=7, max_tokens=4, stream_options={"include_usage": True})
    chunks = chunks_of(await http.post(CHAT, json=body))
    texts, ends = {0: "", 1: ""}, []
    for chunk in chunks[:-1]:
        choice = chunk["choices"][0]
        texts[choice["index"]] += choice["delta"].get("content", "")
        if choice["finish_reason"]:
            ends.append((choice["index"], choice["finish_reason"]))
    assert texts == {0: "Hell", 1: "Hell"}
    assert sorted(ends) == [(0, "length"), (1, "length")]
    whole = (await http.post(CHAT, json=chat(max_tokens=4))).json()
    assert chunks[-1]["usage"]["completion_tokens"] == 8
    assert chunks[-1]["usage"]["prompt_tokens"] == whole["usage"]["prompt_tokens"]


async def test_seeds_of_several_choices_differ_and_repeat(http: httpx.AsyncClient, services: FakeServices) -> None:
    for _ in range(2):
        await http.post(CHAT, json=chat(n=2, seed=7, max_tokens=1))
    seeds = [submit.sampling.seed for submit in services.engine.submitted]
    assert seeds == [7, 8, 7, 8]


async def test_max_completion_tokens_wins_over_max_tokens(http: httpx.AsyncClient) -> None:
    answer = (await http.post(CHAT, json=chat(max_tokens=9, max_completion_tokens=3))).json()
    assert answer["usage"]["completion_tokens"] == 3
    assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("stop", ["there", ["nope", "there"], [", Par", "there,"]])
async def test_stop_string_cuts_before_itself(
    http: httpx.AsyncClient, services: FakeServices, stop: Any, stream: bool
) -> None:
    response = await http.post(CHAT, json=chat(stop=stop, stream=stream))
    if stream:
        chunks = chunks_of(response)
        text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
        reason = chunks[-1]["choices"][0]["finish_reason"]
    else:
        choice = response.json()["choices"][0]
        text, reason = choice["message"]["content"], choice["finish_reason"]
    assert (text, reason) == ("Hello ", "stop")
    assert len(services.engine.aborted) == 1
    assert not services.engine.open


async def test_stop_string_that_only_begins_is_flushed_at_the_end(http: httpx.AsyncClient) -> None:
    answer = (await http.post(CHAT, json=chat(stop="Paris!!"))).json()
    assert answer["choices"][0]["message"]["content"] == "Hello there, Paris!"


async def test_logprobs_bytes_spell_the_content(http: httpx.AsyncClient, services: FakeServices) -> None:
    services.engine.reply = "Grüß 東京!"
    answer = (await http.post(CHAT, json=chat(logprobs=True, top_logprobs=2))).json()
    choice = answer["choices"][0]
    entries = choice["logprobs"]["content"]
    assert bytes(byte for entry in entries for byte in entry["bytes"]).decode() == choice["message"]["content"]
    assert all(len(entry["top_logprobs"]) == 2 for entry in entries)
    assert all(math.isfinite(entry["logprob"]) for entry in entries)


async def test_logprobs_end_where_a_stop_string_cut(http: httpx.AsyncClient) -> None:
    for stream in (False, True):
        response = await http.post(CHAT, json=chat(logprobs=True, stop="there", stream=stream))
        if stream:
            found = [chunk["choices"][0]["logprobs"] for chunk in chunks_of(response)]
            entries = [entry for logprobs in found if logprobs for entry in logprobs["content"]]
        else:
            entries = response.json()["choices"][0]["logprobs"]["content"]
        assert bytes(byte for entry in entries for byte in entry["bytes"]) == b"Hello "


async def test_tool_history_and_null_content_are_read(http: httpx.AsyncClient) -> None:
    messages = [
        {"role": "user", "content": "weather?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "w", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ]
    assert (await http.post(CHAT, json=chat(messages=messages))).status_code == 200


async def test_developer_role_and_text_parts_are_read(http: httpx.AsyncClient, services: FakeServices) -> None:
    messages = [
        {"role": "developer", "content": "be brief", "future_field": 1},
        {"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]},
    ]
    assert (await http.post(CHAT, json=chat(messages=messages))).status_code == 200
    assert bytes(services.engine.submitted[0].prompt_token_ids) == b"<system>be brief\n<user>hi\n<assistant>"


async def test_null_is_absent_and_bookkeeping_is_accepted(http: httpx.AsyncClient) -> None:
    nulls = {name: None for name in chat_request.ChatBody.__struct_fields__ if name not in ("model", "messages")}
    assert (await http.post(CHAT, json=chat(**nulls))).status_code == 200
    habits = {"store": True, "metadata": {"a": 1}, "user": "u", "service_tier": "auto", "prediction": {"x": 1}}
    assert (await http.post(CHAT, json=chat(**habits, tools=[], tool_choice="auto"))).status_code == 200


def schema_format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "it", "schema": schema}}


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


def function(**fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", **fields}}


REFUSED = [
    ({"temperature": 2.5}, "temperature"),
    ({"temperature": "warm"}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"presence_penalty": -2.1}, "presence_penalty"),
    ({"n": 0}, "n"),
    ({"n": 9}, "n"),  # above limits.max_choices
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_completion_tokens": -1}, "max_completion_tokens"),
    ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
    ({"stop": [""]}, "stop"),
    ({"stop": 3}, "stop"),
    ({"seed": 2**63}, "seed"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"min_tokens": 9, "max_tokens": 3}, "min_tokens"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {"5": 101}}, "logit_bias"),
    ({"logit_bias": {"100000": 1}}, "logit_bias"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages[0].content"),
    ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools[0]"),
    ({"tools": [{"type": "function", "function": {"name": "no spaces"}}]}, "tools[0]"),
    ({"tools": [{"type": "function"}]}, "tools[0]"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}] * 2}, "tools"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "maybe"}, "tool_choice"),
    ({"tools": [function(parameters={"$ref": "http://x"}, strict=True)]}, "tools[0]"),
    ({"tools": [function(parameters={"title": "x" * 70_000})]}, "tools[0]"),
    ({"tools": [function(parameters=nested(40))]}, "tools[0]"),
    ({"moderation": {}}, "moderation"),
    (
        {
            "tools": [{"type": "function", "function": {"name": "f"}}],
            "tool_choice": {"type": "function", "function": {"name": "g"}},
        },
        "tool_choice",
    ),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"response_format": {"type": "xml"}}, "response_format"),
    ({"response_format": {"type": "json_schema"}}, "response_format"),
    ({"response_format": schema_format({"$ref": "#/$defs/none"})}, "response_format"),
    ({"response_format": schema_format({"$ref": "https://example.com/x"})}, "response_format"),
    ({"response_format": schema_format({"type": "string", "pattern": "(a{1000}){1000}{1000}"})}, "response_format"),
    ({"response_format": schema_format({"title": "x" * 70_000})}, "response_format"),
    ({"response_format": schema_format(nested(40))}, "response_format"),
    ({"guided_choice": []}, "guided_choice"),
    ({"guided_choice": ["yes", ""]}, "guided_choice"),
    ({"guided_json": "{"}, "guided_json"),
    ({"guided_json": "[" * 100_000}, "guided_json"),
    ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex"),
    ({"continue_final_message": True}, "continue_final_message"),
    ({"modalities": ["audio"]}, "modalities"),
    ({"reasoning_effort": "high"}, "reasoning_effort"),
    ({"reasoning_effort": "furious"}, "reasoning_effort"),
    ({"guided_poem": "a+"}, "guided_poem"),
    ({"model": ""}, "model"),
    ({"max_tokens": 5000}, "max_tokens"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED, ids=[str(fields)[:60] for fields, _ in REFUSED])
async def test_wrong_value_is_refused_by_its_name(
    http: httpx.AsyncClient, services: FakeServices, fields: dict[str, Any], param: str
) -> None:
    response = await http.post(CHAT, json=chat(**fields))
    error = response.json()["error"]
    assert response.status_code == 400
    assert error["param"] == param
    assert set(error) == {"message", "type", "param", "code"}
    assert not services.engine.submitted


async def test_required_fields_are_named(http: httpx.AsyncClient) -> None:
    assert (await http.post(CHAT, json={"model": MODEL})).json()["error"]["param"] == "messages"
    assert (await http.post(CHAT, json={"messages": HI})).json()["error"]["param"] == "model"


async def test_prompt_beyond_the_context_tells_both_numbers(http: httpx.AsyncClient) -> None:
    response = await http.post(CHAT, json=chat(messages=[{"role": "user", "content": "x" * 3000}]))
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "messages")
    assert "3,0" in error["message"]
    assert "2,048" in error["message"]


async def test_prompt_far_beyond_the_context_is_refused_without_tokenizing(
    http: httpx.AsyncClient, services: FakeServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tokenize(*_: Any, **__: Any) -> list[int]:
        raise AssertionError("megabytes were tokenized for nothing")

    monkeypatch.setattr(ByteText, "render_chat", tokenize)
    for text in ("x" * 4_000_000, "🙂" * 1_000_000):
        response = await http.post(CHAT, json=chat(messages=[{"role": "user", "content": text}]))
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
        assert "at least 4,000,000" in error["message"]


async def test_tenant_bounds_on_tokens_hold(base_url: str, services: FakeServices) -> None:
    key = await services.new_key("small", TenantLimits(max_output_tokens=5, max_context_tokens=60))
    async with httpx.AsyncClient(base_url=base_url, headers={"x-api-key": key}, trust_env=False) as http:
        assert (await http.post(CHAT, json=chat())).json()["usage"]["completion_tokens"] == 5
        assert (await http.post(CHAT, json=chat(max_tokens=6))).json()["error"]["param"] == "max_tokens"
        long = chat(messages=[{"role": "user", "content": "x" * 60}])
        assert (await http.post(CHAT, json=long)).json()["error"]["code"] == "context_length_exceeded"


async def test_no_alternatives_without_logprobs_ask_for_nothing(http: httpx.AsyncClient) -> None:
    answer = await http.post(CHAT, json=chat(max_tokens=2, logprobs=False, top_logprobs=0))
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["logprobs"] is None
