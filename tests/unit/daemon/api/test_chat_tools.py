"""Tools, structured output and thinking in /v1/chat/completions: streamed and whole, and what reaches the engine."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from daemon.api.http import build_app
from engine.messages import ErrorInfo, GrammarKind
from tests.fakes.fake_services import MODEL, FakeServices, add_replica, fake_services
from tests.fakes.fake_text import ByteText

CHAT = "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "weather", "description": "Of a city", "parameters": PARAMETERS}}
CLOCK = {"type": "function", "function": {"name": "clock"}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Łódź"}}\n</tool_call>'


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": HI, "tools": [TOOL, CLOCK], **fields}


def chunks_of(response: httpx.Response) -> list[dict[str, Any]]:
    lines = [line for line in response.text.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]", response.text
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


async def both(http: httpx.AsyncClient, body: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The whole answer's choice, and the stream's deltas of the same request."""
    whole = await http.post(CHAT, json=body)
    assert whole.status_code == 200, whole.text
    chunks = chunks_of(await http.post(CHAT, json={**body, "stream": True}))
    return whole.json()["choices"][0], [chunk["choices"][0] for chunk in chunks]


async def test_call_is_told_whole_and_streamed_alike(http: httpx.AsyncClient, services: FakeServices) -> None:
    services.engine.reply = "Let me look.\n" + CALL + CALL.replace("Łódź", "Rome")
    choice, deltas = await both(http, chat())
    assert choice["finish_reason"] == deltas[-1]["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Let me look."
    calls = choice["message"]["tool_calls"]
    assert [json.loads(call["function"]["arguments"])["city"] for call in calls] == ["Łódź", "Rome"]
    assert len({call["id"] for call in calls}) == 2
    told = [call for delta in deltas for call in delta["delta"].get("tool_calls", ())]
    assert [call["index"] for call in told] == [0, 1]
    assert all(set(call) == {"index", "id", "type", "function"} for call in told)
    assert [call["function"] for call in told] == [call["function"] for call in calls]


async def test_call_without_text_has_null_content(http: httpx.AsyncClient, services: FakeServices) -> None:
    services.engine.reply = CALL
    choice, deltas = await both(http, chat())
    assert choice["message"]["content"] is None
    assert "".join(delta["delta"].get("content") or "" for delta in deltas) == ""


async def test_cut_off_call_is_length_and_no_call(http: httpx.AsyncClient, services: FakeServices) -> None:
    services.engine.reply = CALL
    choice, deltas = await both(http, chat(max_tokens=30))
    assert choice["finish_reason"] == deltas[-1]["finish_reason"] == "length"
    assert "tool_calls" not in choice["message"]
    assert choice["message"]["content"] == CALL[:30]


async def test_one_call_at_most_ends_the_generation(http: httpx.AsyncClient, services: FakeServices) -> None:
    services.engine.reply = CALL + CALL + "x" * 100
    choice, deltas = await both(http, chat(parallel_tool_calls=False))
    assert len(choice["message"]["tool_calls"]) == 1
    assert sum(len(delta["delta"].get("tool_calls", ())) for delta in deltas) == 1
    assert choice["finish_reason"] == deltas[-1]["finish_reason"] == "tool_calls"
    assert len(services.engine.aborted) == 2


@pytest.mark.parametrize("arguments", ["[" * 5000, '{"a": ' * 900 + "1" + "}" * 900, '"\\ud800"', "nonsense", ""])
async def test_broken_arguments_of_a_history_are_no_fault(tmp_path: Path, arguments: str) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "clock", "arguments": arguments}}
    messages = [*HI, {"role": "assistant", "content": None, "tool_calls": [call]}, *HI]
    async with fake_services(tmp_path) as services, plain_http(services) as http:
        response = await http.post(CHAT, json={"model": "plain", "messages": messages, "max_tokens": 1})
        assert response.status_code in (200, 400)


async def test_half_a_surrogate_in_a_call_stays_an_escape(http: httpx.AsyncClient, services: FakeServices) -> None:
    services.engine.reply = CALL.replace("Łódź", "\\ud800")
    choice, deltas = await both(http, chat())
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["arguments"] == '{"city": "\\ud800"}'
    told = next(told for delta in deltas for told in delta["delta"].get("tool_calls", ()))
    assert told["function"] == call["function"]


async def test_without_tools_a_call_stays_text(http: httpx.AsyncClient, services: FakeServices) -> None:
    services.engine.reply = CALL
    for fields in ({"tools": None}, {"tool_choice": "none"}):
        choice, _ = await both(http, chat(**fields))
        assert choice["message"]["content"] == CALL
        assert choice["finish_reason"] == "stop"
        assert b"<tools>" not in bytes(services.engine.submitted[-1].prompt_token_ids)


async def test_tools_reach_the_template(http: httpx.AsyncClient, services: FakeServices) -> None:
    await http.post(CHAT, json=chat())
    prompt = bytes(services.engine.submitted[0].prompt_token_ids).decode()
    assert prompt.startswith("<tools>")
    assert '"name": "weather"' in prompt
    assert services.engine.submitted[0].sampling.grammar is None


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", ["weather", "clock"]),
        ({"type": "function", "function": {"name": "clock"}}, ["clock"]),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "clock"}}]},
            },
            ["clock"],
        ),
    ],
)
async def test_forced_call_is_bound_by_a_grammar(
    http: httpx.AsyncClient, services: FakeServices, choice: Any, names: list[str]
) -> None:
    assert (await http.post(CHAT, json=chat(tool_choice=choice))).status_code == 200
    grammar = services.engine.submitted[0].sampling.grammar
    assert grammar is not None
    assert grammar.kind is GrammarKind.LARK
    assert [name for name in ("weather", "clock") if f'\\"{name}\\"' in grammar.text] == names


async def test_strict_tool_binds_what_may_be_called(http: httpx.AsyncClient, services: FakeServices) -> None:
    strict = {"type": "function", "function": {**TOOL["function"], "strict": True}}
    some = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "clock"}}]}
    for fields in (
        {"tools": [strict, CLOCK]},
        {"tool_choice": {"type": "allowed_tools", "allowed_tools": some}},
        {"response_format": {"type": "json_object"}},
    ):
        assert (await http.post(CHAT, json=chat(**fields))).status_code == 200
        grammar = services.engine.submitted[-1].sampling.grammar
        assert grammar is not None
        assert "clock" in grammar.text
        assert ("weather" in grammar.text) == ("tool_choice" not in fields)


async def test_model_whose_template_knows_no_tools_is_told_in_words(tmp_path: Path) -> None:
    async with fake_services(tmp_path) as services, plain_http(services) as http:
        services.engine.reply = CALL
        history = [
            {"role": "system", "content": "Be kind."},
            *HI,
            {"role": "assistant", "content": None, "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "call_1", "content": "noon"},
        ]  # fmt: skip
        choice = (await http.post(CHAT, json=chat(model="plain", messages=history))).json()["choices"][0]
        assert choice["message"]["tool_calls"][0]["function"]["name"] == "weather"
        prompt = bytes(services.engine.submitted[0].prompt_token_ids).decode()
        assert prompt.startswith("<system>Be kind.\n\n# Tools")
        assert '<assistant><tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>' in prompt
        assert "<user><tool_response>\nnoon\n</tool_response>" in prompt


async def test_thinking_is_told_apart_and_counted(tmp_path: Path) -> None:
    async with fake_services(tmp_path) as services, plain_http(services) as http:
        services.engine.reply = "<think>\nhm\n</think>\n\nParis"
        choice, deltas = await both(http, {"model": "thinker", "messages": HI, "reasoning_effort": "high"})
        assert (choice["message"]["reasoning_content"], choice["message"]["content"]) == ("hm", "Paris")
        assert "".join(delta["delta"].get("reasoning_content", "") for delta in deltas) == "hm"
        assert "".join(delta["delta"].get("content", "") for delta in deltas) == "Paris"
        usage = (await http.post(CHAT, json={"model": "thinker", "messages": HI})).json()["usage"]
        assert 2 <= usage["completion_tokens_details"]["reasoning_tokens"] < usage["completion_tokens"]


async def test_schema_reaches_the_engine_as_a_grammar(client: openai.AsyncOpenAI, services: FakeServices) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    services.engine.reply = '{"n": 7}'
    await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "hi"}],
        response_format={"type": "json_schema", "json_schema": {"name": "it", "schema": schema, "strict": True}},
    )
    await client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "hi"}], response_format={"type": "json_object"}
    )
    first, second = (submit.sampling.grammar for submit in services.engine.submitted)
    assert first is not None
    assert second is not None
    assert (first.kind, json.loads(first.text)) == (GrammarKind.JSON_SCHEMA, {**schema, "additionalProperties": False})
    assert second.kind is GrammarKind.JSON_OBJECT


@pytest.mark.parametrize("stream", [False, True])
async def test_grammar_that_the_worker_refuses_is_a_400_before_any_byte(
    http: httpx.AsyncClient, services: FakeServices, stream: bool
) -> None:
    services.engine.fail_after = 0
    services.engine.error = ErrorInfo("invalid_parameter", "The keyword 'not' is not understood.", "")
    body = {"model": MODEL, "messages": HI, "stream": stream, "response_format": {"type": "json_object"}}
    response = await http.post(CHAT, json=body)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, "invalid_parameter", "response_format")


async def test_last_message_is_continued(http: httpx.AsyncClient, services: FakeServices) -> None:
    messages = [*HI, {"role": "assistant", "content": "Once upon"}]
    body = {"model": MODEL, "messages": messages, "continue_final_message": True}
    assert (await http.post(CHAT, json=body)).status_code == 200
    assert bytes(services.engine.submitted[0].prompt_token_ids) == b"<user>hi\n<assistant>Once upon"


async def test_choices_of_one_prompt_are_a_group_of_its_tenant(http: httpx.AsyncClient, services: FakeServices) -> None:
    await http.post(CHAT, json={"model": MODEL, "messages": HI, "n": 2})
    await http.post(CHAT, json={"model": MODEL, "messages": HI})
    groups = [submit.prompt_group for submit in services.engine.submitted]
    assert groups[0] == groups[1] != ""
    assert groups[2] == ""
    assert {submit.tenant for submit in services.engine.submitted} == {services.engine.submitted[0].cache_salt} != {""}


def plain_http(services: FakeServices) -> Any:
    add_replica(services.router, "plain", services.engine, text=ByteText(tool_format=None))
    add_replica(services.router, "thinker", services.engine, text=ByteText(thinks=True))
    transport = httpx.ASGITransport(build_app(services))
    headers = {"x-api-key": services.key}
    return httpx.AsyncClient(transport=transport, base_url="http://bayard", headers=headers)


@pytest.fixture
async def refusing(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with fake_services(tmp_path) as services, plain_http(services) as http:
        yield http


async def test_effort_for_a_model_that_does_not_think_is_refused(refusing: httpx.AsyncClient) -> None:
    for effort, status in (("high", 400), ("none", 200), ("minimal", 200)):
        response = await refusing.post(CHAT, json={"model": "plain", "messages": HI, "reasoning_effort": effort})
        assert response.status_code == status
