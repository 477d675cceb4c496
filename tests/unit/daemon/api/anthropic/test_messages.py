"""/v1/messages through the official client, and its errors as raw answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from daemon.api.http import PublicApp
from daemon.api.sse import StreamKeeper
from tests.fakes.fake_engine import FakeEngine
from tests.fakes.fake_services import MODEL, FakeServices, add_replica, http_server
from tests.fakes.fake_text import ByteText

anthropic = pytest.importorskip("anthropic", reason="the official client, of the extra `conformance`")
HI = [{"role": "user", "content": "hi"}]
ADD = {
    "name": "add",
    "description": "adds",
    "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}},
}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


@pytest.fixture
async def claude(services: FakeServices, base_url: str) -> AsyncIterator[Any]:
    async with anthropic.AsyncAnthropic(base_url=base_url, api_key=services.key, max_retries=0) as made:
        yield made


def body(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "max_tokens": 64, "messages": HI, **fields}


async def test_message_has_text_reason_and_usage(claude: Any) -> None:
    message = await claude.messages.create(**body())
    assert [(block.type, block.text) for block in message.content] == [("text", "Hello there, Paris!")]
    assert (message.stop_reason, message.stop_sequence, message.role) == ("end_turn", None, "assistant")
    assert message.id.startswith("msg_")
    assert message.usage.output_tokens == 19


async def test_stream_says_the_same_as_the_whole(claude: Any) -> None:
    whole = await claude.messages.create(**body())
    async with claude.messages.stream(**body()) as stream:
        texts = [text async for text in stream.text_stream]
        message = await stream.get_final_message()
    assert len(texts) > 1
    assert "".join(texts) == message.content[0].text == whole.content[0].text
    assert message.usage.input_tokens == whole.usage.input_tokens > 0
    assert message.usage.output_tokens == whole.usage.output_tokens
    assert message.stop_reason == "end_turn"


async def test_stream_names_every_event_in_order(http: httpx.AsyncClient) -> None:
    text = (await http.post("/v1/messages", json=body(stream=True, max_tokens=2))).text
    events = [dict(line.split(": ", 1) for line in event.split("\n")) for event in text.strip().split("\n\n")]
    assert [event["event"] for event in events] == [json.loads(event["data"])["type"] for event in events]
    names = [event["event"] for event in events]
    assert names[:2] == ["message_start", "content_block_start"]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(names[2:-3]) == {"content_block_delta"}
    delta = json.loads(events[-2]["data"])
    assert (delta["delta"]["stop_reason"], delta["usage"]["output_tokens"]) == ("max_tokens", 2)


async def test_count_tokens_equals_the_requests_own(claude: Any) -> None:
    asked = {"model": MODEL, "messages": HI, "system": [{"type": "text", "text": "Be brief."}], "tools": [ADD]}
    counted = await claude.messages.count_tokens(**asked)
    message = await claude.messages.create(**asked, max_tokens=4)
    assert counted.input_tokens == message.usage.input_tokens


async def test_stop_sequence_is_told(claude: Any) -> None:
    message = await claude.messages.create(**body(stop_sequences=["zzz", "there"]))
    assert (message.content[0].text, message.stop_reason) == ("Hello ", "stop_sequence")
    assert message.stop_sequence == "there"


async def test_max_tokens_beyond_the_context_is_clamped(http: httpx.AsyncClient, services: FakeServices) -> None:
    assert (await http.post("/v1/messages", json=body(max_tokens=128_000))).status_code == 200
    (submitted,) = services.engine.submitted
    assert submitted.sampling.max_tokens == 2048 - len(submitted.prompt_token_ids)


@pytest.mark.parametrize("streamed", [False, True])
async def test_tool_call_is_one_block_without_empty_text(claude: Any, services: FakeServices, streamed: bool) -> None:
    services.engine.reply = CALL
    asked = body(tools=[ADD], max_tokens=500)
    if streamed:
        async with claude.messages.stream(**asked) as stream:
            message = await stream.get_final_message()
    else:
        message = await claude.messages.create(**asked)
    (block,) = message.content
    assert (block.type, block.name, block.input) == ("tool_use", "add", {"a": 1})
    assert block.id.startswith("toolu_")
    assert message.stop_reason == "tool_use"


@pytest.mark.parametrize(
    ("choice", "forced"),
    [
        ({"type": "any"}, True),
        ({"type": "tool", "name": "add"}, True),
        ({"type": "auto"}, False),
        ({"type": "auto", "disable_parallel_tool_use": True}, False),
        ({"type": "none"}, False),
    ],
)
async def test_tool_choice_forces_by_a_grammar(
    http: httpx.AsyncClient, services: FakeServices, choice: dict[str, Any], forced: bool
) -> None:
    assert (await http.post("/v1/messages", json=body(tools=[ADD], tool_choice=choice))).status_code == 200
    (submitted,) = services.engine.submitted
    assert (submitted.sampling.grammar is not None) == forced


async def test_output_format_constrains(http: httpx.AsyncClient, services: FakeServices) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    config = {"format": {"type": "json_schema", "schema": schema}}
    assert (await http.post("/v1/messages", json=body(output_config=config))).status_code == 200
    (submitted,) = services.engine.submitted
    assert submitted.sampling.grammar is not None
    assert json.loads(submitted.sampling.grammar.text)["properties"] == schema["properties"]


async def test_history_reaches_the_template_in_its_words(http: httpx.AsyncClient, services: FakeServices) -> None:
    turns = [
        {"role": "user", "content": [{"type": "text", "text": "add", "cache_control": {"type": "ephemeral"}}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "x"},
                {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 1}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "2"}]},
        {"role": "user", "content": "so?"},
    ]
    seen: list[list[dict[str, Any]]] = []
    replica = services.router.replica_for(MODEL)
    render = replica.text.render_chat

    def spy(messages: Any, *arguments: Any, **variables: Any) -> list[int]:
        seen.append([dict(message) for message in messages])
        return render(messages, *arguments, **variables)

    replica.text.render_chat = spy  # type: ignore[method-assign]
    asked = body(messages=turns, tools=[ADD], system="Be brief.")
    assert (await http.post("/v1/messages", json=asked)).status_code == 200
    (messages,) = seen
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "tool", "user"]
    assert messages[2]["reasoning_content"] == "hm"
    assert json.loads(messages[2]["tool_calls"][0]["function"]["arguments"]) == {"a": 1}
    assert (messages[3]["content"], messages[3]["tool_call_id"]) == ("2", "toolu_1")


async def test_last_assistant_turn_is_written_on(http: httpx.AsyncClient, services: FakeServices) -> None:
    turns = [*HI, {"role": "assistant", "content": "Well, "}]
    assert (await http.post("/v1/messages", json=body(messages=turns))).status_code == 200
    (submitted,) = services.engine.submitted
    assert bytes(submitted.prompt_token_ids).endswith(b"Well, ")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "system", "content": "x"}]}, "system"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "text only"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "Begin with a user's message"),
        ({"temperature": 2.5}, "temperature"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"nonsense": 1}, "nonsense"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "web_search"),
        ({"tools": [ADD], "tool_choice": {"type": "tool", "name": "sub"}}, "sub"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2048}}, "think"),
        ({"output_config": {"format": {"type": "xml"}}}, "xml"),
        ({"mcp_servers": [{"url": "http://x"}]}, "mcp_servers"),
    ],
)
async def test_refusals_have_the_contracts_shape(http: httpx.AsyncClient, fields: dict[str, Any], said: str) -> None:
    asked = {key: value for key, value in body(**fields).items() if value is not None}
    response = await http.post("/v1/messages", json=asked)
    told = response.json()
    assert response.status_code == 400
    assert (told["type"], told["error"]["type"]) == ("error", "invalid_request_error")
    assert said in told["error"]["message"]
    assert told["request_id"] == response.headers["request-id"]


async def test_statuses_are_the_contracts(http: httpx.AsyncClient, services: FakeServices) -> None:
    wrong_key = await http.post("/v1/messages", json=body(), headers={"authorization": "Bearer bk_live_wrong"})
    assert (wrong_key.status_code, wrong_key.json()["error"]["type"]) == (401, "authentication_error")
    unknown = await http.post("/v1/messages", json=body(model="absent"))
    assert (unknown.status_code, unknown.json()["error"]["type"]) == (404, "not_found_error")
    method = await http.get("/v1/messages")
    assert (method.status_code, method.headers["allow"]) == (405, "POST")
    services.tenants.admission.draining = True
    busy = await http.post("/v1/messages", json=body())
    assert (busy.status_code, busy.json()["error"]["type"]) == (529, "overloaded_error")
    assert int(busy.headers["retry-after"]) > 0


async def test_failure_in_a_stream_is_its_last_event(http: httpx.AsyncClient, services: FakeServices) -> None:
    services.engine.fail_after = 3
    text = (await http.post("/v1/messages", json=body(stream=True))).text
    last = text.strip().split("\n\n")[-1]
    assert last.startswith("event: error\ndata: ")
    assert json.loads(last.split("data: ", 1)[1])["error"]["type"] == "overloaded_error"
    await services.freed()


async def test_disconnect_aborts(services: FakeServices, base_url: str) -> None:
    services.engine.hold = asyncio.Event()
    async with httpx.AsyncClient(base_url=base_url, headers={"x-api-key": services.key}, trust_env=False) as http:
        asking = asyncio.create_task(http.post("/v1/messages", json=body(stream=True)))
        while not services.engine.open:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    await services.freed()


async def test_models_are_listed_for_both_kinds_of_clients(claude: Any, client: Any) -> None:
    assert [model.id async for model in claude.models.list()] == [MODEL]
    assert (await claude.models.retrieve(MODEL)).display_name == MODEL
    assert [model.id async for model in client.models.list()] == [MODEL]
    with pytest.raises(anthropic.NotFoundError):
        await claude.models.retrieve("absent")


@pytest.fixture
def thinker(services: FakeServices) -> FakeEngine:
    engine = FakeEngine(reply="<think>\nhm\n</think>\n\nParis")
    add_replica(services.router, "thinker", engine, text=ByteText(thinks=True))
    return engine


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("thinking", "kinds"),
    [
        ({"type": "enabled", "budget_tokens": 2048}, ["thinking", "text"]),
        ({"type": "adaptive"}, ["thinking", "text"]),
        ({"type": "enabled", "budget_tokens": 2048, "display": "omitted"}, ["text"]),
        (None, ["text"]),
    ],
)
async def test_thinking_is_a_block_of_its_own_where_it_was_asked_for(
    claude: Any, thinker: FakeEngine, streamed: bool, thinking: Any, kinds: list[str]
) -> None:
    asked = {**body(max_tokens=200), "model": "thinker"} | ({"thinking": thinking} if thinking else {})
    if streamed:
        async with claude.messages.stream(**asked) as stream:
            message = await stream.get_final_message()
    else:
        message = await claude.messages.create(**asked)
    assert [block.type for block in message.content] == kinds
    assert message.content[-1].text == "Paris"
    if kinds[0] == "thinking":
        assert (message.content[0].thinking, bool(message.content[0].signature)) == ("hm", True)
    assert thinker.submitted


async def test_thoughts_go_back_into_the_conversation(claude: Any, thinker: FakeEngine) -> None:
    asked = {**body(max_tokens=200), "model": "thinker", "thinking": {"type": "adaptive"}}
    first = await claude.messages.create(**asked)
    turns = [*HI, {"role": "assistant", "content": first.content}, {"role": "user", "content": "sure?"}]
    assert (await claude.messages.create(**{**asked, "messages": turns})).content


async def test_long_wait_is_filled_with_comments_that_clients_pass_over(services: FakeServices) -> None:
    services.engine.hold = asyncio.Event()
    async with (
        http_server(PublicApp(services, StreamKeeper(comment_after_s=0.05))) as url,
        anthropic.AsyncAnthropic(base_url=url, api_key=services.key, max_retries=0) as claude,
    ):
        asking = asyncio.create_task(claude.messages.create(**body(stream=True)))
        stream = await asyncio.wait_for(asking, 5)  # the comments have begun it
        services.engine.hold.set()
        events = [event.type async for event in stream]
    assert (events[0], events[-1]) == ("message_start", "message_stop")
