"""/v1/responses with the official client: events in order, functions, stored conversations of one tenant alone."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import httpx
import openai
import pytest

from daemon.responses.archive import ResponseArchive, StoredTurn
from daemon.store.base import utc_now
from engine.errors import NotFound
from engine.messages import ErrorInfo
from tests.fakes.fake_services import MODEL, FakeServices, add_replica
from tests.fakes.fake_text import ByteText

PATH = "/v1/responses"
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
TOOL: Any = {
    "type": "function",
    "name": "weather",
    "description": "Of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}


def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    events = []
    for block in response.text.split("\n\n"):
        if block:
            name, data = block.split("\n")
            events.append(json.loads(data.removeprefix("data: ")))
            assert name == f"event: {events[-1]['type']}"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


async def test_text_stream_has_the_nine_types_in_order(client: openai.AsyncOpenAI) -> None:
    kinds: list[str] = []
    text = ""
    async for event in await client.responses.create(model=MODEL, input="hi", stream=True):
        if event.type not in kinds:
            kinds.append(event.type)
        if event.type == "response.output_text.delta":
            text += event.delta
        if event.type == "response.completed":
            assert event.response.output_text == text == "Hello there, Paris!"
            assert event.response.usage is not None
            assert event.response.usage.total_tokens > event.response.usage.output_tokens == len(text)
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]


async def test_stream_helper_and_whole_answer_agree(client: openai.AsyncOpenAI, services: FakeServices) -> None:
    add_replica(services.router, "thinker", services.engine, text=ByteText(thinks=True))
    services.engine.reply = "<think>\nhm\n</think>\n\nLet me look.\n" + CALL
    asked: Any = {"model": "thinker", "input": "hi", "tools": [TOOL]}
    async with client.responses.stream(**asked) as stream:
        async for _ in stream:
            pass
        streamed = await stream.get_final_response()
    whole = await client.responses.create(**asked)
    for response in (streamed, whole):
        assert [item.type for item in response.output] == ["reasoning", "message", "function_call"]
        thought, message, call = response.output
        assert thought.content[0].text == "hm"
        assert message.content[0].text == "Let me look."
        assert json.loads(call.arguments) == {"city": "Rome"}
        assert call.call_id.startswith("call_")
        assert response.usage.output_tokens_details.reasoning_tokens > 0
    assert streamed.usage == whole.usage


async def test_thinking_is_told_as_the_summary_that_was_asked_for(
    client: openai.AsyncOpenAI, services: FakeServices
) -> None:
    add_replica(services.router, "thinker", services.engine, text=ByteText(thinks=True))
    services.engine.reply = "<think>\nhm\n</think>\n\nParis"
    kinds: list[str] = []
    async with client.responses.stream(
        model="thinker", input="hi", reasoning={"effort": "low", "summary": "auto"}
    ) as stream:
        async for event in stream:
            kinds += [] if event.type in kinds else [event.type]
        final = await stream.get_final_response()
    thought, message = final.output
    assert thought.type == "reasoning"
    assert [part.text for part in thought.summary] == ["hm"]
    assert final.output_text == "Paris"
    assert kinds[2:7] == [
        "response.output_item.added",
        "response.reasoning_summary_part.added",
        "response.reasoning_summary_text.delta",
        "response.reasoning_summary_text.done",
        "response.reasoning_summary_part.done",
    ]
    assert message.type == "message"
    again = await client.responses.create(model="thinker", input="so", previous_response_id=final.id)
    assert again.output_text == "Paris"


async def test_whole_object_equals_the_streams_terminal_one(http: httpx.AsyncClient) -> None:
    body = {"model": MODEL, "input": "hi", "top_logprobs": 1, "metadata": {"a": "b"}}
    whole = (await http.post(PATH, json=body)).json()
    events = events_of(await http.post(PATH, json={**body, "stream": True}))
    last = events[-1]["response"]
    varying = {"id", "created_at"}
    for response in (whole, last):
        for item in response["output"]:
            del item["id"]
    assert {k: v for k, v in last.items() if k not in varying} == {k: v for k, v in whole.items() if k not in varying}
    assert len(whole["output"][0]["content"][0]["logprobs"]) == whole["usage"]["output_tokens"]
    assert whole["metadata"] == {"a": "b"}


async def test_forced_function_is_added_told_and_done(client: openai.AsyncOpenAI, services: FakeServices) -> None:
    services.engine.reply = CALL
    kinds = []
    choice: Any = {"type": "function", "name": "weather"}
    async for event in await client.responses.create(
        model=MODEL, input="hi", tools=[TOOL], tool_choice=choice, stream=True
    ):
        kinds.append(event.type)
        if event.type == "response.output_item.done":
            assert event.item.type == "function_call"
            assert event.item.call_id
            assert event.item.name == "weather"
    assert kinds[2:] == [
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert services.engine.submitted[0].sampling.grammar is not None


@pytest.mark.parametrize("stream", [False, True])
async def test_cut_off_answer_is_incomplete(http: httpx.AsyncClient, stream: bool) -> None:
    response = await http.post(PATH, json={"model": MODEL, "input": "hi", "max_output_tokens": 3, "stream": stream})
    answer = events_of(response)[-1]["response"] if stream else response.json()
    assert answer["status"] == "incomplete"
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
    assert answer["output"][0]["status"] == "incomplete"
    assert answer["output"][0]["content"][0]["text"] == "Hel"


async def test_failure_mid_stream_is_one_failed_event(http: httpx.AsyncClient, services: FakeServices) -> None:
    services.engine.fail_after = 3
    events = events_of(await http.post(PATH, json={"model": MODEL, "input": "hi", "stream": True}))
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["error"]["code"] == "worker_lost"
    assert not {"response.completed", "response.incomplete"} & {event["type"] for event in events}


@pytest.mark.parametrize("stream", [False, True])
async def test_refused_schema_is_a_400_before_any_event(
    http: httpx.AsyncClient, services: FakeServices, stream: bool
) -> None:
    services.engine.fail_after = 0
    services.engine.error = ErrorInfo("invalid_parameter", "The keyword 'not' is not understood.", "")
    form = {"type": "json_schema", "name": "it", "schema": {"not": {}}}
    response = await http.post(PATH, json={"model": MODEL, "input": "hi", "text": {"format": form}, "stream": stream})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "text.format")


async def test_conversation_goes_on_from_a_stored_answer(client: openai.AsyncOpenAI, services: FakeServices) -> None:
    first = await client.responses.create(model=MODEL, input="hi", instructions="Be brief.")
    second = await client.responses.create(model=MODEL, input="and?", previous_response_id=first.id)
    await client.responses.create(
        model=MODEL, input=[{"role": "user", "content": "so"}], previous_response_id=second.id, store=False
    )
    prompt = bytes(services.engine.submitted[-1].prompt_token_ids).decode()
    assert prompt == (
        "<user>hi\n<assistant>Hello there, Paris!\n<user>and?\n<assistant>Hello there, Paris!\n<user>so\n<assistant>"
    )


async def test_function_results_go_on_from_a_stored_call(client: openai.AsyncOpenAI, services: FakeServices) -> None:
    services.engine.reply = CALL
    first = await client.responses.create(model=MODEL, input="hi", tools=[TOOL])
    (call,) = first.output
    assert call.type == "function_call"
    services.engine.reply = "sunny"
    output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "25 C"}
    second = await client.responses.create(model=MODEL, input=[output], previous_response_id=first.id, tools=[TOOL])
    assert second.output_text == "sunny"
    reference: Any = {"type": "item_reference", "id": call.id}
    user: Any = {"role": "user", "content": [{"type": "input_text", "text": "hi"}]}
    again = await client.responses.create(model=MODEL, input=[user, reference, output], tools=[TOOL])
    assert again.output_text == "sunny"
    assert services.engine.submitted[-1].prompt_token_ids == services.engine.submitted[-2].prompt_token_ids


async def test_stored_answer_is_read_listed_and_deleted(client: openai.AsyncOpenAI) -> None:
    made = await client.responses.create(model=MODEL, input="hi")
    assert (await client.responses.retrieve(made.id)).model_dump() == made.model_dump()
    items = await client.responses.input_items.list(made.id)
    assert items.data[0].content[0].text == "hi"  # type: ignore[union-attr, index]
    await client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(made.id)
    with pytest.raises(openai.BadRequestError):
        await client.responses.create(model=MODEL, input="x", previous_response_id=made.id)


async def test_input_items_are_paged(http: httpx.AsyncClient) -> None:
    items = [{"role": "user", "content": str(number)} for number in range(5)]
    made = (await http.post(PATH, json={"model": MODEL, "input": items})).json()
    listed: list[str] = []
    query: dict[str, Any] = {"limit": 2, "order": "asc"}
    while True:
        page = (await http.get(f"{PATH}/{made['id']}/input_items", params=query)).json()
        listed += [item["content"][0]["text"] for item in page["data"]]
        if not page["has_more"]:
            break
        query["after"] = page["last_id"]
    assert listed == ["0", "1", "2", "3", "4"]
    for wrong in ({"limit": 0}, {"limit": "x"}, {"order": "up"}, {"after": "none"}):
        assert (await http.get(f"{PATH}/{made['id']}/input_items", params=wrong)).status_code == 400


async def test_unstored_answer_is_not_kept(client: openai.AsyncOpenAI) -> None:
    made = await client.responses.create(model=MODEL, input="hi", store=False)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(made.id)


async def test_another_tenant_sees_nothing_of_a_stored_answer(
    client: openai.AsyncOpenAI, base_url: str, services: FakeServices
) -> None:
    made = await client.responses.create(model=MODEL, input="secret")
    item: Any = {"type": "item_reference", "id": made.output[0].id}
    key = await services.new_key("other")
    async with openai.AsyncOpenAI(base_url=base_url + "/v1", api_key=key, max_retries=0) as other:
        for attempt in (
            other.responses.retrieve(made.id),
            other.responses.delete(made.id),
            other.responses.input_items.list(made.id),
        ):
            with pytest.raises(openai.NotFoundError):
                await attempt
        for body in ({"input": "x", "previous_response_id": made.id}, {"input": [item]}):
            with pytest.raises(openai.BadRequestError):
                await other.responses.create(model=MODEL, **body)  # type: ignore[call-overload]
    assert (await client.responses.retrieve(made.id)).id == made.id


async def test_old_answers_are_forgotten(services: FakeServices) -> None:
    tenant = (await services.tenants.tenants())[0].id
    archive = ResponseArchive(services.store, keep_days=1)
    old = StoredTurn("resp_old", None, [], {}, utc_now() - timedelta(days=2))
    new = StoredTurn("resp_new", None, [], {}, utc_now())
    await archive.add(tenant, old)
    with pytest.raises(NotFound):
        await archive.get(tenant, "resp_old")
    archive = ResponseArchive(services.store, keep_days=1)
    await archive.add(tenant, new)
    assert (await archive.get(tenant, "resp_new")).id == "resp_new"
    assert (await ResponseArchive(services.store, keep_days=9).get(tenant, "resp_new")).id == "resp_new"
    with pytest.raises(NotFound):
        await ResponseArchive(services.store, keep_days=9).get(tenant, "resp_old")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"role": "wizard", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0]"),
        ({"input": [{"type": "computer_call"}]}, "input[0]"),
        ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input[0]"),
        ({"input": [{"type": "item_reference", "id": "msg_0"}]}, "input[0]"),
        ({"background": True}, "background"),
        ({"conversation": "c"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"truncation": "auto"}, "truncation"),
        ({"include": ["file_search_call.results"]}, "include"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice"),
        ({"text": {"format": {"type": "xml"}}}, "text.format"),
        ({"reasoning": {"effort": "high"}}, "reasoning.effort"),
        ({"reasoning": {"summary": "poem"}}, "reasoning.summary"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 1_000_000}, "max_output_tokens"),
        ({"max_output_tokens": 1_000_000, "stream": True}, "max_output_tokens"),
        ({"input": "x" * 10_000}, "input"),
        ({"previous_response_id": "resp_none"}, "previous_response_id"),
        ({"messages": []}, "messages"),
    ],
)
async def test_wrong_value_is_refused_by_its_name(
    http: httpx.AsyncClient, services: FakeServices, fields: dict[str, Any], param: str
) -> None:
    response = await http.post(PATH, json={"model": MODEL, "input": "hi", **fields})
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    assert not services.engine.submitted
