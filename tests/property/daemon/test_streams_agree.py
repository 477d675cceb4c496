"""Random requests over all fields: streamed and whole answers agree, usage adds up, each ends exactly once.

BAYARD_STREAM_EXAMPLES=500 tries so many of each contract.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import httpx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from daemon.api.http import build_app
from tests.fakes.fake_services import MODEL, FakeServices, add_replica, fake_services
from tests.fakes.fake_text import ByteText

EXAMPLES = int(os.environ.get("BAYARD_STREAM_EXAMPLES", "40"))
SETTINGS = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "Łódź </tool_call>"}}\n</tool_call>'
REPLIES = st.sampled_from(
    [
        "Hello there, Paris!",
        "🙂東京 there",
        "",
        "Par",
        "<think>\nhm, Paris\n</think>\n\nthere it is",
        f"Let me look. {CALL}",
        CALL + "\n" + CALL + " there",
        "<tool_call>\n{broken}\n</tool_call> there",
        CALL[:30],
    ]
)
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
FORMATS = [
    {"type": "text"},
    {"type": "json_object"},
    {"type": "json_schema", "json_schema": {"name": "it", "schema": {"type": "object"}}},
]
SHARED = {
    "temperature": st.none() | st.floats(0, 2),
    "top_p": st.none() | st.floats(0.01, 1),
    "top_k": st.integers(-1, 50),
    "min_p": st.none() | st.floats(0, 1),
    "repetition_penalty": st.none() | st.floats(0.1, 2),
    "n": st.none() | st.integers(1, 4),
    "seed": st.none() | st.integers(-(2**63), 2**63 - 1),
    "max_tokens": st.none() | st.integers(1, 60),
    "stop": st.none() | st.sampled_from(["there", "🙂", "Par", "zzz", "\n"]) | st.just(["Paris", "東"]),
    "presence_penalty": st.floats(-2, 2),
    "frequency_penalty": st.none() | st.floats(-2, 2),
    "logit_bias": st.dictionaries(st.sampled_from(["1", "200"]), st.floats(-100, 100)),
    "ignore_eos": st.booleans(),
    "min_tokens": st.none() | st.integers(0, 1),  # more than max_tokens is refused
    "user": st.text(max_size=10),
    "metadata": st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
    "store": st.booleans(),
    "service_tier": st.none() | st.just("auto"),
}
CHAT = st.fixed_dictionaries(
    {},
    optional={
        **SHARED,
        "max_completion_tokens": st.none() | st.integers(1, 60),
        "logprobs": st.none() | st.booleans(),
        "tools": st.none() | st.just([]) | st.just([TOOL]),
        "tool_choice": st.none() | st.sampled_from(["none", "auto"]),
        "parallel_tool_calls": st.none() | st.booleans(),
        "response_format": st.none() | st.sampled_from(FORMATS),
        "reasoning_effort": st.none() | st.sampled_from(["none", "minimal"]),
        "chat_template_kwargs": st.none() | st.just({"enable_thinking": False}),
    },
)
COMPLETION = st.fixed_dictionaries(
    {"prompt": st.sampled_from(["Once", ["Once", "upon"], [79, 110], [[79], [110, 99]]])},
    optional={**SHARED, "logprobs": st.none() | st.integers(0, 5), "best_of": st.none() | st.just(1)},
)
RESPONSE = st.fixed_dictionaries(
    {"input": st.sampled_from(["hi", [{"role": "user", "content": "hi"}]])},
    optional={
        "temperature": st.none() | st.floats(0, 2),
        "top_p": st.none() | st.floats(0.01, 1),
        "max_output_tokens": st.none() | st.integers(1, 60),
        "instructions": st.none() | st.text(max_size=5),
        "store": st.none() | st.booleans(),
        "top_logprobs": st.none() | st.integers(0, 3),
        "parallel_tool_calls": st.none() | st.booleans(),
        "tools": st.none() | st.just([{"type": "function", "name": "look", "parameters": {"type": "object"}}]),
        "text": st.none() | st.just({"format": {"type": "json_object"}}),
        "metadata": st.none() | st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
    },
)
MODELS = st.sampled_from([MODEL, "thinker"])


async def both(services: FakeServices, path: str, body: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """The whole answer and the stream's text, of the same request."""
    transport = httpx.ASGITransport(build_app(services))
    headers = {"x-api-key": services.key}
    async with httpx.AsyncClient(transport=transport, base_url="http://bayard", headers=headers) as http:
        whole = await http.post(path, json=body)
        options = {} if path == "/v1/responses" else {"stream_options": {"include_usage": True}}
        streamed = await http.post(path, json=body | {"stream": True} | options)
    assert whole.status_code == streamed.status_code == 200, whole.text
    return whole.json(), streamed.text


def chunks_of(text: str) -> list[dict[str, Any]]:
    assert text.count("data: [DONE]") == 1
    events = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert events[-1] == "[DONE]"
    return [json.loads(event) for event in events[:-1]]


def check_usage(usage: dict[str, Any]) -> None:
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert 0 <= usage["prompt_tokens_details"]["cached_tokens"] <= usage["prompt_tokens"]
    assert 0 <= usage["completion_tokens_details"]["reasoning_tokens"] <= usage["completion_tokens"]


def check_chat(whole: dict[str, Any], streamed: str) -> None:
    *others, last = chunks_of(streamed)
    assert whole["usage"] == last["usage"]
    check_usage(whole["usage"])
    for choice in whole["choices"]:
        mine = [chunk["choices"][0] for chunk in others if chunk["choices"][0]["index"] == choice["index"]]
        deltas, message = [part["delta"] for part in mine], choice["message"]
        assert [delta.get("role") for delta in deltas].count("assistant") == 1
        assert "".join(delta.get("content") or "" for delta in deltas) == (message["content"] or "")
        assert "".join(delta.get("reasoning_content", "") for delta in deltas) == message.get("reasoning_content", "")
        calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
        assert [call["index"] for call in calls] == list(range(len(calls)))
        assert [call["function"] for call in calls] == [call["function"] for call in message.get("tool_calls", ())]
        assert [part["finish_reason"] for part in mine if part["finish_reason"]] == [choice["finish_reason"]]
        assert mine[-1]["finish_reason"]
        assert (choice["finish_reason"] == "tool_calls") <= bool(calls)
        entries = [entry for part in mine if part["logprobs"] for entry in part["logprobs"]["content"]]
        assert entries == (choice["logprobs"] or {"content": []})["content"]


def check_completion(whole: dict[str, Any], streamed: str) -> None:
    *others, last = chunks_of(streamed)
    assert whole["usage"] == last["usage"]
    check_usage(whole["usage"])
    for choice in whole["choices"]:
        mine = [chunk["choices"][0] for chunk in others if chunk["choices"][0]["index"] == choice["index"]]
        assert "".join(part["text"] for part in mine) == choice["text"]
        assert [part["finish_reason"] for part in mine if part["finish_reason"]] == [choice["finish_reason"]]
        if choice["logprobs"] is not None:
            for name, values in choice["logprobs"].items():
                assert [v for part in mine if part["logprobs"] for v in part["logprobs"][name]] == values


def check_response(whole: dict[str, Any], streamed: str) -> None:
    events = [json.loads(block.split("\ndata: ", 1)[1]) for block in streamed.split("\n\n") if block]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    ends = [e for e in events if e["type"] in ("response.completed", "response.incomplete", "response.failed")]
    assert ends == events[-1:]
    last = ends[0]["response"]
    assert last["usage"] == whole["usage"]
    assert last["status"] == whole["status"]
    assert [bare(item) for item in last["output"]] == [bare(item) for item in whole["output"]]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == last["output"]
    for item in last["output"]:
        deltas = [e["delta"] for e in events if e["type"].endswith(".delta") and e["item_id"] == item["id"]]
        text = item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
        assert "".join(deltas) == text


def bare(item: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in item.items() if key not in ("id", "call_id")}


CHECKS = {
    "/v1/chat/completions": check_chat,
    "/v1/completions": check_completion,
    "/v1/responses": check_response,
}


async def agree(folder: Path, path: str, body: dict[str, Any], reply: str, burst: int) -> None:
    async with fake_services(folder, key=KEYS.get(folder)) as services:
        KEYS[folder] = services.key
        services.engine.reply, services.engine.burst = reply, burst
        add_replica(services.router, "thinker", services.engine, text=ByteText(thinks=True))
        if not reply and body.get("ignore_eos"):
            body = {**body, "ignore_eos": False}  # an engine with nothing to say would never end
        CHECKS[path](*await both(services, path, body))
        assert not len(services.serving.live)
        assert not services.engine.open
        assert not services.tenants.admission.running


KEYS: dict[Path, str] = {}  # of a folder that an earlier example made


@SETTINGS
@given(CHAT, MODELS, REPLIES, st.integers(1, 7))
def test_chat_streamed_and_whole_agree(
    tmp_path: Path, fields: dict[str, Any], model: str, reply: str, burst: int
) -> None:
    messages = [{"role": "user", "content": "hi"}]
    body = {"model": model, "messages": messages, "max_tokens": 40, **fields}
    asyncio.run(agree(tmp_path, "/v1/chat/completions", body, reply, burst))


@SETTINGS
@given(COMPLETION, MODELS, REPLIES, st.integers(1, 7))
def test_completions_streamed_and_whole_agree(
    tmp_path: Path, fields: dict[str, Any], model: str, reply: str, burst: int
) -> None:
    body = {"model": model, "max_tokens": 40, **fields}
    if body.get("best_of") is not None:
        body["best_of"] = body.get("n") or 1
    asyncio.run(agree(tmp_path, "/v1/completions", body, reply, burst))


@SETTINGS
@given(RESPONSE, MODELS, REPLIES, st.integers(1, 7))
def test_responses_streamed_and_whole_agree(
    tmp_path: Path, fields: dict[str, Any], model: str, reply: str, burst: int
) -> None:
    body = {"model": model, "max_output_tokens": 40, **fields}
    asyncio.run(agree(tmp_path, "/v1/responses", body, reply, burst))
