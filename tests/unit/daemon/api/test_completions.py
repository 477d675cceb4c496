"""/v1/completions: prompts in every form, choices in prompt order, echo."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import httpx
import openai
import pytest

from tests.fakes.fake_services import MODEL, FakeServices, add_replica
from tests.fakes.fake_text import ByteText

PATH = "/v1/completions"


async def test_completion_whole_and_streamed_are_equal(client: openai.AsyncOpenAI) -> None:
    whole = await client.completions.create(model=MODEL, prompt="Once", max_tokens=30)
    texts = []
    async for chunk in await client.completions.create(model=MODEL, prompt="Once", max_tokens=30, stream=True):
        texts.append(chunk.choices[0].text)
    assert whole.id.startswith("cmpl-")
    assert whole.choices[0].text == "".join(texts) == "Hello there, Paris!"
    assert whole.choices[0].finish_reason == "stop"


async def test_completion_default_is_sixteen_tokens(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(model=MODEL, prompt="Once")
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 16


async def test_completion_of_several_prompts_is_prompt_major(
    client: openai.AsyncOpenAI, services: FakeServices
) -> None:
    answer = await client.completions.create(model=MODEL, prompt=["one", "three"], n=2, max_tokens=2)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    prompts = {submit.request_id[-1]: bytes(submit.prompt_token_ids) for submit in services.engine.submitted}
    assert prompts == {"0": b"one", "1": b"one", "2": b"three", "3": b"three"}
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 8


async def test_completion_of_token_ids(client: openai.AsyncOpenAI, services: FakeServices) -> None:
    await client.completions.create(model=MODEL, prompt=[104, 105], max_tokens=1)
    await client.completions.create(model=MODEL, prompt=[[104], [105, 106]], max_tokens=1)
    assert sorted(submit.prompt_token_ids for submit in services.engine.submitted) == [[104], [104, 105], [105, 106]]


@pytest.mark.parametrize("stream", [False, True])
async def test_completion_echo_begins_with_the_prompt(http: httpx.AsyncClient, stream: bool) -> None:
    body = {"model": MODEL, "prompt": "Say: ", "echo": True, "max_tokens": 2, "stream": stream}
    response = await http.post(PATH, json=body)
    if stream:
        events = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
        text = "".join(json.loads(event)["choices"][0]["text"] for event in events[:-1])
    else:
        text = response.json()["choices"][0]["text"]
    assert text == "Say: He"


async def test_completion_echo_of_nothing_more(http: httpx.AsyncClient, services: FakeServices) -> None:
    body = {"model": MODEL, "prompt": "Say", "echo": True, "max_tokens": 0}
    answer = (await http.post(PATH, json=body)).json()
    assert answer["choices"][0]["text"] == "Say"
    assert answer["usage"] == {**answer["usage"], "prompt_tokens": 3, "completion_tokens": 0}
    assert not services.engine.submitted


async def test_completion_logprobs_have_the_older_shape(http: httpx.AsyncClient) -> None:
    body = {"model": MODEL, "prompt": "x", "logprobs": 2, "max_tokens": 3}
    logprobs = (await http.post(PATH, json=body)).json()["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["H", "e", "l"]
    assert logprobs["text_offset"] == [0, 1, 2]
    assert [len(top) for top in logprobs["top_logprobs"]] == [2, 2, 2]


async def test_completion_keeps_the_most_probable_of_several(http: httpx.AsyncClient, services: FakeServices) -> None:
    services.engine.replies = {0: "bad", 1: "good", 2: "best", 3: "x", 4: "y", 5: "z"}
    services.engine.logprob_of = {"bad": -3.0, "good": -2.0, "best": -1.0, "x": -1.0, "y": -1.0, "z": -0.5}
    body = {"model": MODEL, "prompt": ["p", "q"], "n": 2, "best_of": 3}
    answer = (await http.post(PATH, json=body)).json()
    assert [choice["text"] for choice in answer["choices"]] == ["best", "good", "z", "x"]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert all(choice["logprobs"] is None for choice in answer["choices"])
    assert answer["usage"]["completion_tokens"] == sum(map(len, ("bad", "good", "best", "x", "y", "z")))


class FillText(ByteText):
    """The same with tokens for filling in, spelled by bytes that no text has."""

    marks: ClassVar[dict[str, int]] = {}

    def special_id(self, text: str) -> int | None:
        return self.marks.get(text)


@pytest.mark.parametrize(
    ("marks", "prompt"),
    [
        (("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"), b"\xf8ab\xf9c\xfa"),
        (("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"), b"\xf8ab\xf9c\xfa"),
        (("[PREFIX]", "[SUFFIX]"), b"\xf9c\xf8ab"),
    ],
)
async def test_suffix_is_put_behind_its_mark(
    http: httpx.AsyncClient, services: FakeServices, marks: tuple[str, ...], prompt: bytes
) -> None:
    text = FillText()
    text.marks = dict(zip(marks, (0xF8, 0xF9, 0xFA), strict=False))  # type: ignore[misc]
    add_replica(services.router, "coder", services.engine, text=text)
    body = {"model": "coder", "prompt": "ab", "suffix": "c"}
    assert (await http.post(PATH, json=body)).status_code == 200
    assert bytes(services.engine.submitted[-1].prompt_token_ids) == prompt
    refused = await http.post(PATH, json={**body, "prompt": [1, 2]})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "suffix")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [""]}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [300]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"suffix": "end"}, "suffix"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"best_of": 9}, "best_of"),
        ({"logprobs": 6}, "logprobs"),
        ({"echo": True, "logprobs": 1}, "logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
    ],
)
async def test_completion_wrong_value_is_refused_by_its_name(
    http: httpx.AsyncClient, services: FakeServices, fields: dict[str, Any], param: str
) -> None:
    response = await http.post(PATH, json={"model": MODEL, "prompt": "x", **fields})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert not services.engine.submitted
