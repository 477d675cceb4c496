"""C35 to C37, with Anthropic's own client and LangChain's against the real model."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.e2e.conformance_other.conftest import MODEL, Served

anthropic = pytest.importorskip("anthropic", reason="Anthropic's client, of the extra `conformance`")
HI = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}, "required": ["city"],
          "additionalProperties": False}  # fmt: skip
TOOL = {"name": "get_weather", "description": "The weather of a city.", "input_schema": SCHEMA}
FORCED = {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "get_weather"}, "max_tokens": 100}


@pytest.fixture(scope="module")
def claude(served: Served) -> Any:
    return anthropic.Anthropic(base_url=served.url, api_key=served.key, max_retries=0)


def test_c35_messages_stream_ends_in_a_message_with_usage(claude: Any) -> None:
    asked = {"model": MODEL, "max_tokens": 8, "messages": HI, "extra_body": {"temperature": 0}}
    with claude.messages.stream(**asked) as stream:
        texts = list(stream.text_stream)
        message = stream.get_final_message()
    assert "".join(texts) == message.content[0].text
    assert message.usage.input_tokens > 0
    assert message.usage.output_tokens > 0
    assert claude.messages.create(**asked).content[0].text == message.content[0].text


def test_c36_count_tokens_equals_input_tokens(claude: Any) -> None:
    asked = {"model": MODEL, "messages": HI, "system": "Be brief.", "tools": [TOOL]}
    counted = claude.messages.count_tokens(**asked)
    assert counted.input_tokens == claude.messages.create(**asked, max_tokens=1).usage.input_tokens


def test_c37_without_max_tokens_is_400_in_the_contracts_shape(served: Served) -> None:
    answer = httpx.post(
        f"{served.url}/v1/messages", json={"model": MODEL, "messages": HI}, headers={"x-api-key": served.key}
    )
    told = answer.json()
    assert (answer.status_code, told["type"], told["error"]["type"]) == (400, "error", "invalid_request_error")
    assert "max_tokens" in told["error"]["message"]


@pytest.mark.parametrize("streamed", [False, True])
def test_forced_tool_is_called_with_valid_arguments(claude: Any, streamed: bool) -> None:
    asked = {"model": MODEL, "messages": [{"role": "user", "content": "Weather in Paris?"}], **FORCED}
    if streamed:
        with claude.messages.stream(**asked, extra_body={"temperature": 0}) as stream:
            message = stream.get_final_message()
    else:
        message = claude.messages.create(**asked, extra_body={"temperature": 0})
    assert message.stop_reason == "tool_use"
    (block,) = message.content
    assert (block.type, block.name, list(block.input)) == ("tool_use", "get_weather", ["city"])


def test_output_format_is_kept(claude: Any) -> None:
    config = {"format": {"type": "json_schema", "schema": SCHEMA}}
    message = claude.messages.create(
        model=MODEL, max_tokens=60, messages=HI, output_config=config, extra_body={"temperature": 0}
    )
    assert list(json.loads(message.content[0].text)) == ["city"]


def test_langchain_talks_and_calls_a_tool(served: Served) -> None:
    langchain = pytest.importorskip("langchain_anthropic", reason="LangChain's client, of the extra `conformance`")
    model = langchain.ChatAnthropic(
        model=MODEL, base_url=served.url, api_key=served.key, max_tokens=100, temperature=0, max_retries=0
    )
    answer = model.invoke("hi")
    assert answer.content
    assert answer.usage_metadata["total_tokens"] > 0
    tool = {"name": "get_weather", "description": "The weather of a city.", "input_schema": SCHEMA}
    called = model.bind_tools([tool], tool_choice="get_weather").invoke("Weather in Paris?")
    assert [call["name"] for call in called.tool_calls] == ["get_weather"]
    streamed = "".join(str(chunk.text) for chunk in model.stream("hi"))
    assert streamed
