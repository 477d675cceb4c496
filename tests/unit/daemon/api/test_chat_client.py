"""/v1/chat/completions through the official client."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest

from tests.fakes.fake_services import MODEL, FakeServices

HI: list[Any] = [{"role": "user", "content": "hi"}]


async def test_chat_whole_answer_is_typed_and_usage_adds_up(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model=MODEL, messages=HI, max_tokens=8)
    assert answer.model == MODEL
    assert answer.id.startswith("chatcmpl-")
    assert answer.choices[0].message.content == "Hello th"
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 8
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 8


async def test_chat_stream_tells_the_role_once_and_equals_the_whole_answer(client: openai.AsyncOpenAI) -> None:
    roles, texts, reasons, ids = [], [], [], set()
    async for chunk in await client.chat.completions.create(model=MODEL, messages=HI, stream=True):
        ids.add((chunk.id, chunk.created))
        delta = chunk.choices[0].delta
        if delta.role:
            roles.append(delta.role)
            assert delta.content == ""
        texts.append(delta.content or "")
        if chunk.choices[0].finish_reason:
            reasons.append(chunk.choices[0].finish_reason)
    whole = await client.chat.completions.create(model=MODEL, messages=HI)
    assert roles == ["assistant"]
    assert reasons == ["stop"]
    assert "".join(texts) == whole.choices[0].message.content == "Hello there, Paris!"
    assert len(ids) == 1


async def test_chat_unknown_model_is_not_found(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        await client.chat.completions.create(model="no/such", messages=HI)
    assert caught.value.code == "model_not_found"
    assert caught.value.param == "model"


async def test_models_ids_with_slash_and_colon_are_found_encoded_and_raw(
    client: openai.AsyncOpenAI, http: httpx.AsyncClient, services: FakeServices
) -> None:
    listed = [model.id async for model in client.models.list()]
    assert listed == [MODEL]
    assert (await client.models.retrieve(MODEL)).id == MODEL
    raw = await http.get(f"/v1/models/{MODEL}")
    assert raw.json()["id"] == MODEL
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("../etc/passwd")
