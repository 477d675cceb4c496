"""Cases C01-C18, C24-C34 with the official Python client. The ids are those of the contract notes' table."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import httpx
import openai
import pydantic
import pytest

from tests.fakes.real_server import RealServer

MODEL = "smollm"
HI: Any = [{"role": "user", "content": "hi"}]
WEATHER: Any = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def client(server: RealServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key=server.key, max_retries=0) as made:
        yield made


def say(client: openai.OpenAI, **fields: Any) -> Any:
    return client.chat.completions.create(
        **{"model": MODEL, "messages": HI, "temperature": 0, "max_completion_tokens": 8, **fields}
    )


def test_c01_chat_is_a_typed_object(client: openai.OpenAI) -> None:
    answer = say(client, max_completion_tokens=openai.omit, max_tokens=8)
    assert answer.object == "chat.completion"
    assert answer.model == MODEL
    assert answer.id.startswith("chatcmpl-")
    assert answer._request_id.startswith("req_")
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.completion_tokens <= 8
    assert answer.choices[0].message.content


def test_c02_stream_equals_the_whole_answer(client: openai.OpenAI) -> None:
    whole = say(client).choices[0]
    roles, text, reasons, ids = [], "", [], set()
    for chunk in say(client, stream=True):
        delta = chunk.choices[0].delta
        ids.add((chunk.id, chunk.created))
        roles += [delta.role] if delta.role else []
        text += delta.content or ""
        reasons += [chunk.choices[0].finish_reason] if chunk.choices[0].finish_reason else []
    assert roles == ["assistant"]
    assert (text, reasons) == (whole.message.content, [whole.finish_reason])
    assert len(ids) == 1


def test_c06_max_completion_tokens_is_length(client: openai.OpenAI) -> None:
    answer = say(client, max_completion_tokens=4)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 4


def test_c08_seeded_choices_repeat(client: openai.OpenAI) -> None:
    first, second = (say(client, n=2, seed=7, temperature=1) for _ in range(2))
    assert [choice.index for choice in first.choices] == [0, 1]
    assert [c.message.content for c in first.choices] == [c.message.content for c in second.choices]
    assert first.system_fingerprint == second.system_fingerprint


def test_c09_stop_word_cuts_before_itself(client: openai.OpenAI) -> None:
    reference = say(client, max_completion_tokens=16).choices[0].message.content
    word = reference.split()[2]
    cut = say(client, max_completion_tokens=16, stop=word).choices[0]
    assert cut.message.content == reference[: reference.index(word)]
    assert cut.finish_reason == "stop"


def test_c11_parse_validates(client: openai.OpenAI) -> None:
    class Number(pydantic.BaseModel):
        value: int

    answer = client.chat.completions.parse(
        model=MODEL, messages=HI, temperature=0, max_completion_tokens=60, response_format=Number
    )
    assert isinstance(answer.choices[0].message.parsed, Number)
    assert answer.choices[0].finish_reason == "stop"


def test_c18_logprobs_spell_the_text(client: openai.OpenAI) -> None:
    choice = say(client, logprobs=True, top_logprobs=2).choices[0]
    entries = choice.logprobs.content
    assert bytes(byte for entry in entries for byte in entry.bytes).decode("utf-8", "ignore") == choice.message.content
    for entry in entries:
        assert len(entry.top_logprobs) == 2
        assert entry.top_logprobs[0].logprob == pytest.approx(entry.logprob, abs=1e-3)  # greedy


def test_c24_quota_is_waited_for(server: RealServer) -> None:
    key = server.new_key("hasty", requests_per_minute=60, request_burst=1)
    with openai.OpenAI(base_url=server.url + "/v1", api_key=key) as client:
        for _ in range(3):  # the second and third are refused first, unless the machine is slower than the rate
            raw = client.chat.completions.with_raw_response.create(
                model=MODEL, messages=HI, max_completion_tokens=1, temperature=0
            )
            assert raw.parse().choices
            assert raw.headers["x-ratelimit-limit-requests"] == "60"
            assert {"x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"} <= set(raw.headers)


def test_c24_refusal_says_when_to_come_back(server: RealServer) -> None:
    key = server.new_key("patient", requests_per_minute=1)
    with openai.OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0) as client:
        say(client, max_completion_tokens=1)
        with pytest.raises(openai.RateLimitError) as refused:
            say(client, max_completion_tokens=1)
    headers = refused.value.response.headers
    assert 1 <= int(headers["retry-after"]) <= 60
    assert int(headers["retry-after-ms"]) <= 1000 * int(headers["retry-after"])
    assert refused.value.code == "quota_exceeded"


def test_c26_c27_completions_of_tokens_and_echo(client: openai.OpenAI) -> None:
    tokens = client.completions.create(model=MODEL, prompt=[504, 253], max_tokens=2, temperature=0)
    assert tokens.usage is not None
    assert tokens.usage.prompt_tokens == 2
    echoed = client.completions.create(model=MODEL, prompt="Once upon", max_tokens=2, temperature=0, echo=True)
    assert echoed.choices[0].text.startswith("Once upon")


def test_c31_models_are_listed_and_retrieved(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert client.models.retrieve(model.id).id == model.id == MODEL
    with pytest.raises(openai.NotFoundError) as missing:
        client.models.retrieve("org/none:1")
    assert missing.value.code == "model_not_found"


def test_c33_responses_stream_has_nine_types_in_order(client: openai.OpenAI) -> None:
    kinds: list[str] = []
    for event in client.responses.create(
        model=MODEL, input="hi", temperature=0, max_output_tokens=500, stream=True, store=False
    ):
        if event.type not in kinds:
            kinds.append(event.type)
    names = (
        "created in_progress output_item.added content_part.added output_text.delta output_text.done "
        "content_part.done output_item.done completed"
    )
    assert kinds == [f"response.{name}" for name in names.split()]


def test_c34_responses_forced_function(client: openai.OpenAI) -> None:
    tool: Any = {"type": "function", "name": "weather", "parameters": WEATHER, "strict": True}
    done = []
    for event in client.responses.create(
        model=MODEL,
        input="Weather in Rome?",
        tools=[tool],
        tool_choice={"type": "function", "name": "weather"},
        temperature=0,
        max_output_tokens=100,
        stream=True,
    ):
        if event.type == "response.output_item.done":
            done.append(event.item)
    (call,) = done
    assert call.type == "function_call"
    assert call.call_id.startswith("call_")
    assert set(json.loads(call.arguments)) == {"city", "days"}


def test_conversation_of_responses_is_kept(client: openai.OpenAI) -> None:
    first = client.responses.create(model=MODEL, input="My name is Ada.", temperature=0, max_output_tokens=8)
    second = client.responses.create(
        model=MODEL, input="Who am I?", previous_response_id=first.id, temperature=0, max_output_tokens=8
    )
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens
    assert client.responses.retrieve(second.id).previous_response_id == first.id


def test_tool_loop_goes_round(client: openai.OpenAI) -> None:
    tool: Any = {"type": "function", "function": {"name": "weather", "parameters": WEATHER}}
    call = say(client, tools=[tool], tool_choice="required", parallel_tool_calls=False, max_completion_tokens=100)
    assert call.choices[0].finish_reason == "tool_calls"
    (made,) = call.choices[0].message.tool_calls
    assert json.loads(made.function.arguments)["city"] in ("Paris", "Rome")
    result: Any = {"role": "tool", "tool_call_id": made.id, "content": "sunny"}
    again = say(client, messages=[*HI, call.choices[0].message, result], tools=[tool])
    assert again.choices[0].message.content


def test_strict_tool_binds_a_free_choice(client: openai.OpenAI) -> None:
    tool: Any = {"type": "function", "function": {"name": "weather", "parameters": WEATHER, "strict": True}}
    messages: Any = [{"role": "user", "content": "Call the function weather for Rome, three days."}]
    choice = say(client, messages=messages, tools=[tool], tool_choice="auto", max_completion_tokens=120).choices[0]
    for call in choice.message.tool_calls or ():
        assert set(json.loads(call.function.arguments)) == {"city", "days"}


def test_connection_is_reused_after_errors(client: openai.OpenAI, http: httpx.Client) -> None:
    for _ in range(3):
        with pytest.raises(openai.BadRequestError):
            say(client, temperature=2.5)
    assert say(client, max_completion_tokens=1).choices


class Weather(pydantic.BaseModel):
    """Of a city"""

    city: Literal["Rome", "Paris"]
    days: int = pydantic.Field(ge=1, le=9)


def test_stream_helpers_parse_as_whole_answers_do(client: openai.OpenAI) -> None:
    fields: Any = {"model": MODEL, "temperature": 0}
    with (
        client.chat.completions.stream(**fields, messages=HI, max_tokens=80, response_format=Weather) as chunks,
        client.responses.stream(**fields, input="hi", max_output_tokens=80, text_format=Weather) as events,
    ):
        chat = chunks.get_final_completion().choices[0].message.parsed
        response = events.get_final_response().output_parsed
    whole = client.responses.parse(**fields, input="hi", max_output_tokens=80, text_format=Weather)
    assert isinstance(chat, Weather)
    assert response == whole.output_parsed
    with client.chat.completions.stream(
        **fields,
        messages=HI,
        max_tokens=120,
        n=2,
        tools=[openai.pydantic_function_tool(Weather)],
        tool_choice="required",
        parallel_tool_calls=False,
    ) as stream:
        choices = stream.get_final_completion().choices
    for choice in choices:
        (call,) = choice.message.tool_calls or ()
        assert isinstance(call.function.parsed_arguments, Weather)
