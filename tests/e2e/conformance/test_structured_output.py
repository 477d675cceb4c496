"""Structured output over HTTP with the small model: always valid, and refused soon where it cannot be."""

from __future__ import annotations

import json
import threading
import time

import httpx
import jsonschema
import pytest

MODEL = "smollm"
ASK = [{"role": "user", "content": "Describe a person as JSON."}]
SCHEMAS = {
    "nested": {
        "type": "object",
        "properties": {
            "person": {
                "type": "object",
                "properties": {"name": {"type": "string", "maxLength": 16}, "age": {"type": "integer", "maximum": 99}},
                "required": ["name", "age"],
                "additionalProperties": False,
            }
        },
        "required": ["person"],
        "additionalProperties": False,
    },
    "references": {
        "$defs": {"colour": {"enum": ["red", "green"]}},
        "type": "array",
        "items": {"$ref": "#/$defs/colour"},
        "minItems": 2,
        "maxItems": 3,
    },
    "union": {"anyOf": [{"type": "boolean"}, {"type": "null"}, {"enum": ["x", "y"]}]},
    "pattern": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
}
PRODUCT = [{"anyOf": [{"type": "object", "properties": {f"p{i}{j}": {}}} for j in range(6)]} for i in range(12)]
REFUSED = {
    "exponential": {"allOf": PRODUCT},
    "intersection": {"allOf": [{"type": "string", "pattern": f"(a|b)*a(a|b){{{n}}}"} for n in range(8, 20)]},
    "not enforced": {"type": "array", "uniqueItems": True},
    "dangling": {"$ref": "#/$defs/nowhere"},
    "look-around": {"type": "string", "pattern": "(?=a)b"},
}


def body(schema: object, **more: object) -> dict[str, object]:
    held = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    return {"model": MODEL, "messages": ASK, "max_tokens": 96, "temperature": 0, "response_format": held, **more}


@pytest.mark.parametrize("name", SCHEMAS)
def test_answer_validates_streamed_or_not_and_for_each_choice(http: httpx.Client, name: str) -> None:
    asked = body(SCHEMAS[name], n=2, temperature=0.8, seed=4)
    whole = http.post("/v1/chat/completions", json=asked).json()
    texts = [choice["message"]["content"] for choice in whole["choices"]]
    streamed = ["", ""]
    with http.stream("POST", "/v1/chat/completions", json={**asked, "stream": True}) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    streamed[choice["index"]] += choice["delta"].get("content") or ""
    assert streamed == texts
    for text in texts:
        jsonschema.validate(json.loads(text), SCHEMAS[name])


def test_bad_schemas_are_400_within_two_seconds_while_others_go_on(http: httpx.Client) -> None:
    free = {"model": MODEL, "messages": ASK, "max_tokens": 150, "temperature": 0, "stream": True, "ignore_eos": True}
    came: list[float] = []
    begun = threading.Event()

    def read() -> None:
        with http.stream("POST", "/v1/chat/completions", json=free) as response:
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    came.append(time.monotonic())
                    begun.set()

    other = threading.Thread(target=read)
    other.start()
    assert begun.wait(30)
    began = time.monotonic()
    for name, schema in REFUSED.items():
        for stream in (False, True):
            sent = time.monotonic()
            answer = http.post("/v1/chat/completions", json=body(schema, stream=stream))
            assert answer.status_code == 400, (name, answer.text)
            assert answer.json()["error"]["type"] == "invalid_request_error"
            assert time.monotonic() - sent < 2, name
    ended = time.monotonic()
    other.join(60)
    assert sum(began < at < ended for at in came) > 3, "the other stream went on meanwhile"
