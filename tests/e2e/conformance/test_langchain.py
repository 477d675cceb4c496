"""Cases C12, C13 and C25 with langchain-openai."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fakes.real_server import RealServer

langchain_openai = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


def chat_model(server: RealServer, **fields: Any) -> Any:
    return langchain_openai.ChatOpenAI(
        **{"model": "smollm", "base_url": server.url + "/v1", "api_key": server.key, "temperature": 0, **fields}
    )


def person(name: str, age: int) -> None:
    """A person.

    Args:
        name: how they are called
        age: in years
    """


SCHEMA = {
    "title": "Person",
    "description": "A person",
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("method", ["json_schema", "function_calling", "json_mode"])
def test_c12_structured_output_is_an_object(server: RealServer, method: str) -> None:
    model = chat_model(server, max_tokens=200 if method == "json_mode" else 100)
    schema = {**SCHEMA, "additionalProperties": True} if method == "json_mode" else SCHEMA
    if method == "json_mode":  # whatever object it is: nothing but JSON binds it
        found = model.bind(response_format={"type": "json_object"}, max_tokens=40).invoke("hi").content
        assert found.lstrip().startswith("{")
        return
    found = model.with_structured_output(schema, method=method).invoke("Ada is 36 years old.")
    assert set(found) == {"name", "age"}
    assert isinstance(found["age"], int)


def test_c13_named_choice_streams_one_call(server: RealServer) -> None:
    tool = {"type": "function", "function": {"name": "person", "parameters": SCHEMA}}
    model = chat_model(server, max_tokens=100).bind_tools([tool], tool_choice="person")
    whole = None
    for chunk in model.stream("Ada is 36 years old."):
        whole = chunk if whole is None else whole + chunk
    assert whole is not None
    (call,) = whole.tool_calls
    assert call["name"] == "person"
    assert set(call["args"]) == {"name", "age"}
    assert json.dumps(call["args"])
    assert call["id"].startswith("call_")


def test_c25_completions_keep_their_order(server: RealServer) -> None:
    model = langchain_openai.OpenAI(
        model="smollm", base_url=server.url + "/v1", api_key=server.key, max_tokens=4, n=2, best_of=3, seed=1
    )
    result = model.generate(["One two", "Red green"])
    assert [len(texts) for texts in result.generations] == [2, 2]
    assert result.llm_output["token_usage"]["completion_tokens"] <= 2 * 3 * 4
