"""Case C15, and the same through LiteLLM's own path."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fakes.real_server import RealServer

litellm = pytest.importorskip("litellm", reason="litellm is not installed")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::ResourceWarning")

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Rome", "Paris"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
MESSAGES = [{"role": "user", "content": "Weather in Rome?"}]


def ask(server: RealServer, **fields: Any) -> Any:
    asked = {"model": "openai/smollm", "messages": MESSAGES, "temperature": 0, "max_tokens": 80, **fields}
    return litellm.completion(api_base=server.url + "/v1", api_key=server.key, **asked)


def test_c15_streamed_call_has_one_id_and_one_name(server: RealServer) -> None:
    named = {"type": "function", "function": {"name": "weather"}}
    chunks = list(ask(server, tools=[TOOL], tool_choice=named, stream=True))
    whole = litellm.stream_chunk_builder(chunks, messages=MESSAGES)
    (call,) = whole.choices[0].message.tool_calls
    assert call.function.name == "weather"
    assert call.id.count("call_") == 1
    assert json.loads(call.function.arguments)["city"] in ("Rome", "Paris")
    assert whole.choices[0].finish_reason == "tool_calls"


def test_litellm_whole_and_streamed_text_agree(server: RealServer) -> None:
    whole = ask(server, max_tokens=8).choices[0].message.content
    chunks = list(ask(server, max_tokens=8, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == whole


def test_litellm_errors_are_its_own_kinds(server: RealServer) -> None:
    with pytest.raises(litellm.NotFoundError):
        ask(server, model="openai/nobody")
    with pytest.raises(litellm.BadRequestError):
        ask(server, temperature=2.5)
